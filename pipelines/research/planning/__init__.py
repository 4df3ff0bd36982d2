"""What runs on many chips cost: computed plans, the table of chips, measurements."""
