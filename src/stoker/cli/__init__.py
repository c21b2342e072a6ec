"""The command line: each verb parses its arguments, calls the API and prints. One file per verb."""
