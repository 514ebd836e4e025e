from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Owner(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OWNER_UNSPECIFIED: _ClassVar[Owner]
    OWNER_POLICY: _ClassVar[Owner]
    OWNER_TASK: _ClassVar[Owner]
    OWNER_INFRASTRUCTURE: _ClassVar[Owner]
OWNER_UNSPECIFIED: Owner
OWNER_POLICY: Owner
OWNER_TASK: Owner
OWNER_INFRASTRUCTURE: Owner

class Failure(_message.Message):
    __slots__ = ("owner", "code", "message")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    owner: Owner
    code: str
    message: str
    def __init__(self, owner: _Optional[_Union[Owner, str]] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("call_id", "name", "arguments_text", "status")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_TEXT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    name: str
    arguments_text: str
    status: str
    def __init__(self, call_id: _Optional[str] = ..., name: _Optional[str] = ..., arguments_text: _Optional[str] = ..., status: _Optional[str] = ...) -> None: ...

class ToolResult(_message.Message):
    __slots__ = ("call_id", "name", "text", "is_error")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    name: str
    text: str
    is_error: bool
    def __init__(self, call_id: _Optional[str] = ..., name: _Optional[str] = ..., text: _Optional[str] = ..., is_error: _Optional[bool] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("text", "reasoning", "call", "result")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    text: str
    reasoning: str
    call: ToolCall
    result: ToolResult
    def __init__(self, text: _Optional[str] = ..., reasoning: _Optional[str] = ..., call: _Optional[_Union[ToolCall, _Mapping]] = ..., result: _Optional[_Union[ToolResult, _Mapping]] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("role", "parts")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    role: str
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, role: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class ToolSpec(_message.Message):
    __slots__ = ("name", "description", "parameters_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters_json: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters_json: _Optional[str] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("contract_min", "contract_max")
    CONTRACT_MIN_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_MAX_FIELD_NUMBER: _ClassVar[int]
    contract_min: int
    contract_max: int
    def __init__(self, contract_min: _Optional[int] = ..., contract_max: _Optional[int] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("contract", "name", "version", "kind")
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    contract: int
    name: str
    version: str
    kind: str
    def __init__(self, contract: _Optional[int] = ..., name: _Optional[str] = ..., version: _Optional[str] = ..., kind: _Optional[str] = ...) -> None: ...

class ConfigureRequest(_message.Message):
    __slots__ = ("parameters",)
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    parameters: _containers.ScalarMap[str, str]
    def __init__(self, parameters: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ConfigureResponse(_message.Message):
    __slots__ = ("failure", "uses_memory")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    USES_MEMORY_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    uses_memory: bool
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ..., uses_memory: _Optional[bool] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("prompt", "reply", "finish", "row_json")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    ROW_JSON_FIELD_NUMBER: _ClassVar[int]
    prompt: _containers.RepeatedCompositeFieldContainer[Message]
    reply: str
    finish: str
    row_json: str
    def __init__(self, prompt: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., reply: _Optional[str] = ..., finish: _Optional[str] = ..., row_json: _Optional[str] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("samples",)
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    samples: _containers.RepeatedCompositeFieldContainer[Sample]
    def __init__(self, samples: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("value", "named", "failure")
    class NamedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VALUE_FIELD_NUMBER: _ClassVar[int]
    NAMED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    value: float
    named: _containers.ScalarMap[str, float]
    failure: Failure
    def __init__(self, value: _Optional[float] = ..., named: _Optional[_Mapping[str, float]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("scores",)
    SCORES_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedCompositeFieldContainer[Score]
    def __init__(self, scores: _Optional[_Iterable[_Union[Score, _Mapping]]] = ...) -> None: ...

class StartRequest(_message.Message):
    __slots__ = ("episode", "row_json")
    EPISODE_FIELD_NUMBER: _ClassVar[int]
    ROW_JSON_FIELD_NUMBER: _ClassVar[int]
    episode: str
    row_json: str
    def __init__(self, episode: _Optional[str] = ..., row_json: _Optional[str] = ...) -> None: ...

class StepRequest(_message.Message):
    __slots__ = ("episode", "turn", "text", "message")
    EPISODE_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    episode: str
    turn: int
    text: str
    message: Message
    def __init__(self, episode: _Optional[str] = ..., turn: _Optional[int] = ..., text: _Optional[str] = ..., message: _Optional[_Union[Message, _Mapping]] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("messages", "tools", "turn_reward", "signals")
    class SignalsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TURN_REWARD_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    tools: _containers.RepeatedCompositeFieldContainer[ToolSpec]
    turn_reward: float
    signals: _containers.ScalarMap[str, float]
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., tools: _Optional[_Iterable[_Union[ToolSpec, _Mapping]]] = ..., turn_reward: _Optional[float] = ..., signals: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Ending(_message.Message):
    __slots__ = ("kind", "owner", "detail", "turn_reward", "signals")
    class SignalsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    TURN_REWARD_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    owner: Owner
    detail: str
    turn_reward: float
    signals: _containers.ScalarMap[str, float]
    def __init__(self, kind: _Optional[str] = ..., owner: _Optional[_Union[Owner, str]] = ..., detail: _Optional[str] = ..., turn_reward: _Optional[float] = ..., signals: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Turn(_message.Message):
    __slots__ = ("state", "ending", "failure", "reads", "writes")
    STATE_FIELD_NUMBER: _ClassVar[int]
    ENDING_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    state: State
    ending: Ending
    failure: Failure
    reads: MemoryReads
    writes: _containers.RepeatedCompositeFieldContainer[MemoryWrite]
    def __init__(self, state: _Optional[_Union[State, _Mapping]] = ..., ending: _Optional[_Union[Ending, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., reads: _Optional[_Union[MemoryReads, _Mapping]] = ..., writes: _Optional[_Iterable[_Union[MemoryWrite, _Mapping]]] = ...) -> None: ...

class MemoryWrite(_message.Message):
    __slots__ = ("key", "value_json", "vector")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_JSON_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    key: str
    value_json: str
    vector: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, key: _Optional[str] = ..., value_json: _Optional[str] = ..., vector: _Optional[_Iterable[float]] = ...) -> None: ...

class MemoryReads(_message.Message):
    __slots__ = ("reads",)
    READS_FIELD_NUMBER: _ClassVar[int]
    reads: _containers.RepeatedCompositeFieldContainer[MemoryRead]
    def __init__(self, reads: _Optional[_Iterable[_Union[MemoryRead, _Mapping]]] = ...) -> None: ...

class MemoryRead(_message.Message):
    __slots__ = ("key", "search")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    key: str
    search: MemorySearch
    def __init__(self, key: _Optional[str] = ..., search: _Optional[_Union[MemorySearch, _Mapping]] = ...) -> None: ...

class MemorySearch(_message.Message):
    __slots__ = ("vector", "k")
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    vector: _containers.RepeatedScalarFieldContainer[float]
    k: int
    def __init__(self, vector: _Optional[_Iterable[float]] = ..., k: _Optional[int] = ...) -> None: ...

class MemoryHit(_message.Message):
    __slots__ = ("key", "value_json", "score")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_JSON_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value_json: str
    score: float
    def __init__(self, key: _Optional[str] = ..., value_json: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class MemoryFound(_message.Message):
    __slots__ = ("hits",)
    HITS_FIELD_NUMBER: _ClassVar[int]
    hits: _containers.RepeatedCompositeFieldContainer[MemoryHit]
    def __init__(self, hits: _Optional[_Iterable[_Union[MemoryHit, _Mapping]]] = ...) -> None: ...

class ContinueRequest(_message.Message):
    __slots__ = ("episode", "found")
    EPISODE_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    episode: str
    found: _containers.RepeatedCompositeFieldContainer[MemoryFound]
    def __init__(self, episode: _Optional[str] = ..., found: _Optional[_Iterable[_Union[MemoryFound, _Mapping]]] = ...) -> None: ...

class CloseRequest(_message.Message):
    __slots__ = ("episode",)
    EPISODE_FIELD_NUMBER: _ClassVar[int]
    episode: str
    def __init__(self, episode: _Optional[str] = ...) -> None: ...

class CloseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("tools",)
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    tools: _containers.RepeatedCompositeFieldContainer[ToolSpec]
    def __init__(self, tools: _Optional[_Iterable[_Union[ToolSpec, _Mapping]]] = ...) -> None: ...

class CallRequest(_message.Message):
    __slots__ = ("episode", "call_id", "name", "arguments_json", "row_json")
    EPISODE_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    ROW_JSON_FIELD_NUMBER: _ClassVar[int]
    episode: str
    call_id: str
    name: str
    arguments_json: str
    row_json: str
    def __init__(self, episode: _Optional[str] = ..., call_id: _Optional[str] = ..., name: _Optional[str] = ..., arguments_json: _Optional[str] = ..., row_json: _Optional[str] = ...) -> None: ...

class CallResponse(_message.Message):
    __slots__ = ("text", "is_error", "signals", "failure")
    class SignalsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    text: str
    is_error: bool
    signals: _containers.ScalarMap[str, float]
    failure: Failure
    def __init__(self, text: _Optional[str] = ..., is_error: _Optional[bool] = ..., signals: _Optional[_Mapping[str, float]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class RowsRequest(_message.Message):
    __slots__ = ("split", "start")
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    split: str
    start: int
    def __init__(self, split: _Optional[str] = ..., start: _Optional[int] = ...) -> None: ...

class RowsResponse(_message.Message):
    __slots__ = ("rows_json", "total", "failure")
    ROWS_JSON_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    rows_json: _containers.RepeatedScalarFieldContainer[str]
    total: int
    failure: Failure
    def __init__(self, rows_json: _Optional[_Iterable[str]] = ..., total: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class Fact(_message.Message):
    __slots__ = ("id", "lineage", "step", "metrics_json", "end")
    ID_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    METRICS_JSON_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    id: str
    lineage: int
    step: int
    metrics_json: str
    end: RunEnd
    def __init__(self, id: _Optional[str] = ..., lineage: _Optional[int] = ..., step: _Optional[int] = ..., metrics_json: _Optional[str] = ..., end: _Optional[_Union[RunEnd, _Mapping]] = ...) -> None: ...

class RunEnd(_message.Message):
    __slots__ = ("kind", "reason", "message")
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    reason: str
    message: str
    def __init__(self, kind: _Optional[str] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class TrackRequest(_message.Message):
    __slots__ = ("run_uid", "run_name", "facts")
    RUN_UID_FIELD_NUMBER: _ClassVar[int]
    RUN_NAME_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    run_uid: str
    run_name: str
    facts: _containers.RepeatedCompositeFieldContainer[Fact]
    def __init__(self, run_uid: _Optional[str] = ..., run_name: _Optional[str] = ..., facts: _Optional[_Iterable[_Union[Fact, _Mapping]]] = ...) -> None: ...

class TrackResponse(_message.Message):
    __slots__ = ("failure",)
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...
