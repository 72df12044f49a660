"""Code of other libraries on a session: loops of Accelerate and Fabric, Trainers of transformers and Lightning."""
