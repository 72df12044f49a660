"""Programs of other libraries, run as they are on the workers of a job."""
