"""Every error that reasond raises on purpose: the base, and one module for each branch.

    ReasondError                      base
    ├── RequestError                  the caller can correct it: request, turns, repairs
    ├── StrategyError                 the choice of a strategy: request
    ├── AccessError                   authentication and permissions: access
    ├── LimitError                    limits and capacity: limits
    ├── LookupFailedError             missing resources: request, executions, turns, repairs
    ├── ModelError                    the language model: model
    ├── NotResumableError             executions
    ├── EngineUnavailableError, EngineFailedError    repairs
    ├── InternalError                 base
    └── SettingsError                 the operator's configuration; never sent to a caller: base

Each class declares its reason: codes, remedy, whether to retry. `reasons` lists the classes by reason.
"""
