"""Read live topics into Spark: plan on the driver, read in tasks, offsets in checkpoints."""
