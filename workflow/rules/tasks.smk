# Tasks and demonstrations.
rule provision:
    input:
        spec.deps("provision"),
    output:
        directory(spec.out("provision")),
    log:
        "logs/provision.log",
    benchmark:
        "logs/benchmarks/provision.tsv"
    retries: 1
    threads: asks("provision").cpus
    resources:
        gpu=asks("provision").gpu,
        mem_mb=asks("provision").mem_mb,
        runtime=asks("provision").minutes,
    params:
        spec.params("provision"),
    shell:
        run_stage("provision")


rule demos:
    input:
        spec.deps("demos"),
    output:
        directory(spec.out("demos")),
    log:
        "logs/demos.log",
    benchmark:
        "logs/benchmarks/demos.tsv"
    retries: 1
    threads: asks("demos").cpus
    resources:
        gpu=asks("demos").gpu,
        mem_mb=asks("demos").mem_mb,
        runtime=asks("demos").minutes,
    params:
        spec.params("demos"),
    shell:
        run_stage("demos")
