"""The report: tables, figures, film strips and pages made from what the stages left in `results/`."""
