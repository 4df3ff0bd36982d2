"""The experiments at toy scale: minutes on two cores, on the data sets of the package."""
