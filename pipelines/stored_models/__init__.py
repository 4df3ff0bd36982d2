"""Where a model comes from: workdirs, files of weights, names of published weights."""
