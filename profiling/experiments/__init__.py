"""One module a question: variants, factors, tables, charts."""
