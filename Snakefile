# The chain, scheduled: `snakemake --cores all`.
# What each stage runs, reads and makes stands in dvc.yaml; the rules add logs, resources, retries and the report.
from snakemake.utils import min_version, validate

min_version("9.27")


configfile: "params.yaml"


include: "workflow/rules/common.smk"


validate(config, "workflow/schemas/params.schema.json", set_default=False)


# Ignored unless --software-deployment-method apptainer is given; on a cluster it is the place for your own image.
container: "docker://python:3.11-slim"


report: "workflow/report/workflow.rst"


# This rule must stand here: a default target in an included file is ignored.
rule all:
    input:
        list(spec.all_outs()),


include: "workflow/rules/tasks.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/measure.smk"
