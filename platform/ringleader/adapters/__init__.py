"""Training code of other libraries on a session: loops of Accelerate, Trainers of transformers and Lightning."""
