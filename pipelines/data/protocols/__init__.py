"""Published evaluation protocols as settings of the data."""
