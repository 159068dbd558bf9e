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
    params:
        spec.params("demos"),
    shell:
        run_stage("demos")
