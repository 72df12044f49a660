"""The choice of a schedule by what links and additions cost: measured, predicted, tried."""
