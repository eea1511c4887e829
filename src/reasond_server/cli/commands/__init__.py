"""The commands of `reasond`, a module for each; `cli.program` names them all."""
