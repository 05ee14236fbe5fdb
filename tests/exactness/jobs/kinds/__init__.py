"""The jobs, by what is special to them."""
