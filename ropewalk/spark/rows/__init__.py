"""Turn bytes of a log into Arrow record batches: headers, columns, properties, filters, the schema."""
