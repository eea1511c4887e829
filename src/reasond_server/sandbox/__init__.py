"""The sandbox: runs commands over untrusted code; knows neither models nor repairs."""
