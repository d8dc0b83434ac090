"""One run: plan, driver, dry run, export, pretraining, verification."""
