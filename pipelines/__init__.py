"""Commands and the code behind them: pre-train, fine-tune, evaluate, predict, export."""
