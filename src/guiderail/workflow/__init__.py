"""The seam between DVC and Snakemake: dvc.yaml read once (`spec`), the two ledgers kept in step (`ledger`), one job
run (`job`).
"""
