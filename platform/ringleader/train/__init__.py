"""What a training function sees: the Session, and the step transaction behind it."""
