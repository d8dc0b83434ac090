"""OGB's own Evaluator on the predictions of a finished run, beside our scores of the same items."""
