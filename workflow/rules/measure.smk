# Evaluation and the report.
rule evaluate:
    input:
        spec.deps("evaluate"),
    output:
        report(
            directory(spec.out("evaluate")),
            patterns=["{name}.json"],
            caption="../report/evaluate.rst",
            category="Evaluation",
            subcategory="{benchmark}",
            labels={"recipe": "{recipe}", "seed": "{seed}", "file": "{name}"},
        ),
    log:
        "logs/evaluate/{recipe}/seed{seed}/{benchmark}.log",
    benchmark:
        "logs/benchmarks/evaluate/{recipe}/seed{seed}/{benchmark}.tsv"
    retries: 1
    threads: asks("evaluate").cpus
    resources:
        gpu=asks("evaluate").gpu,
        mem_mb=asks("evaluate").mem_mb,
        runtime=asks("evaluate").minutes,
    params:
        spec.params("evaluate"),
    shell:
        run_stage("evaluate")


rule report:
    input:
        spec.deps("report"),
    output:
        report(
            directory(spec.out("report")),
            patterns=[
                "{name}.md",
                "{name}.html",
                "{name}.csv",
                "{name}.json",
                "figures/{name}.svg",
            ],
            caption="../report/report.rst",
            category="Report",
            labels={"file": "{name}"},
        ),
    log:
        "logs/report.log",
    benchmark:
        "logs/benchmarks/report.tsv"
    threads: asks("report").cpus
    resources:
        gpu=asks("report").gpu,
        mem_mb=asks("report").mem_mb,
        runtime=asks("report").minutes,
    params:
        spec.params("report"),
    shell:
        run_stage("report")
