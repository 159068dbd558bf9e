# Training: warm-up, judge of steps, reinforcement, merge. What each asks for stands in params.yaml (resources).
rule sft:
    input:
        spec.deps("sft"),
    output:
        report(
            directory(spec.out("sft")),
            patterns=["{name}.json"],
            caption="../report/sft.rst",
            category="Training",
            subcategory="warm-up",
            labels={"stage": "sft", "seed": "{seed}", "file": "{name}"},
        ),
    log:
        "logs/sft/seed{seed}.log",
    benchmark:
        "logs/benchmarks/sft/seed{seed}.tsv"
    retries: 1
    threads: asks("sft").cpus
    resources:
        gpu=asks("sft").gpu,
        mem_mb=asks("sft").mem_mb,
        runtime=asks("sft").minutes,
    params:
        spec.params("sft"),
    shell:
        run_stage("sft")


rule prm:
    input:
        spec.deps("prm"),
    output:
        report(
            directory(spec.out("prm")),
            patterns=["judge/{name}.json"],
            caption="../report/prm.rst",
            category="Training",
            subcategory="judge",
            labels={
                "stage": "prm",
                "recipe": "{recipe}",
                "seed": "{seed}",
                "file": "{name}",
            },
        ),
    log:
        "logs/prm/{recipe}/seed{seed}.log",
    benchmark:
        "logs/benchmarks/prm/{recipe}/seed{seed}.tsv"
    retries: 1
    threads: asks("prm").cpus
    resources:
        gpu=asks("prm").gpu,
        mem_mb=asks("prm").mem_mb,
        runtime=asks("prm").minutes,
    params:
        spec.params("prm"),
    shell:
        run_stage("prm")


rule rl:
    input:
        spec.deps("rl"),
    output:
        report(
            directory(spec.out("rl")),
            patterns=["{name}.json"],
            caption="../report/rl.rst",
            category="Training",
            subcategory="reinforcement",
            labels={
                "stage": "rl",
                "recipe": "{recipe}",
                "seed": "{seed}",
                "file": "{name}",
            },
        ),
    log:
        "logs/rl/{recipe}/seed{seed}.log",
    benchmark:
        "logs/benchmarks/rl/{recipe}/seed{seed}.tsv"
    retries: 2
    threads: asks("rl").cpus
    resources:
        gpu=asks("rl").gpu,
        mem_mb=asks("rl").mem_mb,
        runtime=asks("rl").minutes,
    params:
        spec.params("rl"),
    shell:
        run_stage("rl")


rule merge:
    input:
        spec.deps("merge"),
    output:
        directory(spec.out("merge")),
    log:
        "logs/merge/{recipe}/seed{seed}.log",
    benchmark:
        "logs/benchmarks/merge/{recipe}/seed{seed}.tsv"
    threads: asks("merge").cpus
    resources:
        gpu=asks("merge").gpu,
        mem_mb=asks("merge").mem_mb,
        runtime=asks("merge").minutes,
    params:
        spec.params("merge"),
    shell:
        run_stage("merge")
