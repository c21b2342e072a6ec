"""Using a trained model: generate, evaluate, export with proof, import."""
