"""What is renamed: see `classes.md` for the reasons, and `rename.py` for how."""

from __future__ import annotations

from typing import NamedTuple


class Symbol(NamedTuple):
    """A name at the top of a module: a class, a function, a constant, or a type alias. `why`: what the thing is."""

    module: str
    old: str
    new: str
    why: str


class Member(NamedTuple):
    """A method or attribute of the class `of` (its new name or its old one does not matter: the old one is given).

    It is renamed after `self.` in the class and its `subclasses`, and after a `receivers` (a regular expression for
    the expression before the dot) in `files` (the beginnings of paths; default: all).
    """

    of: str
    old: str
    new: str
    why: str
    receivers: str = ""
    files: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    subclasses: tuple[str, ...] = ()


class Local(NamedTuple):
    """A parameter or a variable of a function, and of the functions in it. `calls`: calls that pass it by keyword."""

    module: str
    function: str
    old: str
    new: str
    why: str = ""
    calls: str = ""


class Text(NamedTuple):
    """An exact text, of this file; or of the only file of the same top folder that has it."""

    file: str
    old: str
    new: str


P = "penstock."

# Classes and type aliases. A name stays with the public class, or with the one that DESIGN.md or docs/design.md uses.
_CLASSES = [
    # Used twice or more.
    ("_session.measures", "Crew", "MeasuredCrew", "protocol: what `Measures` reads of a crew"),
    ("prefetch", "_Crew", "_ReadingThread", "the thread of `prefetch`, as `Measures` sees it"),
    ("_remote.retry", "Failed", "RequestFailed", "a request to a store failed"),
    ("_remote.retry", "Fault", "RequestFault", "enum: what kind of failure it was"),
    ("formats._samples", "Fault", "TarFault", "a tar is damaged at some byte"),
    ("_fill.cast", "Field", "FieldCast", "the conversion of one field of a batch"),
    ("_fill.cast", "Into", "FieldMemory", "the memory for one field of a batch, with its conversion"),
    ("_work.seeding", "Lent", "GeneratorLoan", "one loan of the global generators"),
    ("torch._sampling", "Lent", "TemporaryStates", "global generators in other states for a while"),
    ("_work.seeding", "Saved", "SavedGenerators", "protocol: takes and puts back the states of generators"),
    ("torch._cursor", "Saved", "LoadedState", "a resume state that was loaded, parsed"),
    ("_work.seeding", "_State", "_PythonAndNumpyState", "the states of `random` and `numpy.random`"),
    ("torch._core", "_State", "_TorchState", "the state of torch's global generator"),
    ("torch._core", "_Borrowed", "_BorrowedWithTorch", "`Borrowed`, and torch's generator too"),
    ("source._dataset", "Link", "ChainItem", "a light item of a `ChainDataset`"),
    ("_schedule.states", "Log", "EventLog", "the last events and commands of a scheduler"),
    ("_wire.updates", "Log", "UpdateLog", "a position in the log of `update()`"),
    ("_prefetch", "Made", "Produced", "what the producer made of one `next()`"),
    ("testing._sources", "Made", "FunctionDataset", "sample i is `make(i)`"),
    ("_cache.cache", "_Made", "_MadePiece", "a piece, and why it is not in the folder"),
    ("_measure.meter", "Mark", "MeterSnapshot", "all counters of a loader at one moment"),
    ("_cache.pieces", "mark_of", "stamp_of", "the stamp of a file"),
    ("_cache.pieces", "Mark", "FileStamp", "inode and time: tells a file from others of the same name"),
    ("_session.measures", "Measured", "HasStats", "base class with `stats()`, `report()` and `trace()`"),
    ("torch._measured", "Measured", "LoaderMeasures", "the measures of one loader with torch's semantics"),
    ("_measure.cached", "Outage", "OngoingOutage", "a store that does not answer now"),
    ("_cache.locks", "Patience", "LockPatience", "how long a lock of a file is waited for"),
    ("_measure.gauges", "Record", "TracedTask", "one task of a worker, for a trace"),
    ("_schedule.tuner", "Rest", "RestMeasurements", "what the tuner measured during a rest"),
    ("_work.samples", "Samples", "SampleFetcher", "fetches samples one by one for a runner"),
    ("formats._samples", "Samples", "TarSamples", "collects the samples of a tar from its members"),
    ("records._samples", "Samples", "RecordSamples", "base class: samples of a file of records"),
    ("_options", "Shard", "RankShard", "a rank, and the number of ranks"),
    ("_schedule.tuner", "State", "TunerState", "enum: settling, measuring, resting"),
    ("backends._ray.challenge", "State", "ChallengeState", "enum: what an end waits for"),
    ("backends._ray.remote", "State", "RemoteWorkerState", "enum: coming, starting, up, leaving, gone"),
    ("_wire.reply", "Strays", "SocketStrays", "strays that the parent received through the socket"),
    ("backends._ray.actor", "Strays", "StrayArrays", "makes strays as arrays (`StrayFiles` makes memfds)"),
    ("backends._ray.exchange", "Strays", "LinkStrays", "strays that the driver received through links"),
    ("_memory.forms", "Table", "MemoTable", "dict that computes missing values, and is cleared when it is full"),
    ("formats._messages", "_Table", "_FlatBufferTable", "a table of a FlatBuffer"),
    ("_remote.options", "_Kind", "_StoreKind", "a kind of store"),
    ("formats._others", "_Kind", "_FileKind", "a kind of file"),
    ("_wire.shipment", "_Popen", "_ShippingPopen", "stands for the started process while objects are pickled for it"),
    ("backends._process.relatives", "_Popen", "_ChildPopen", "stands for a worker in multiprocessing's list"),
    ("_measure.gauges", "_Shown", "_PublishedCounts", "counters whose outage the caller sees in its row"),
    ("torch._loader", "_Shown", "_NonDataProperty", "a property that an attribute of a subclass may hide"),
    ("backends._ray.cluster", "_Actor", "_RayActor", "the handle of a Ray actor"),
    ("_remote.origin", "_Answer", "_HttpAnswer", "the answer of a web server"),
    ("formats._mds", "_Array", "_ArrayDecoder", "reads an array of an MDS sample"),
    ("backends._stack", "_Asked", "_StackRequest", "a process that was asked for its stack"),
    ("_files.index", "_Beside", "_IndexBeside", "an index that is kept beside its file"),
    ("_session.share", "_Call", "_NextCall", "one call of `next()`"),
    ("_system.interrupts", "Changes", "InterruptSafeCondition", "a condition that survives interrupts"),
    ("torch._iterators", "_Closed", "_ClosedBatches", "stands for the batches of a closed iterator"),
    ("_wire.shipment", "_Descriptor", "_InheritedDescriptor", "a descriptor that a worker has inherited"),
    ("_feed.keys", "_Drawn", "_DrawnKeys", "the keys of a sampler that may draw random numbers"),
    ("_files.listed", "_Given", "_GivenUrl", "a URL that was given"),
    ("testing._serving", "_Handler", "_RequestHandler", "answers one HTTP request"),
    ("testing.formats", "_Laws", "_FormatLaws", "the laws of formats"),
    ("_files.local", "_Opened", "_FileObject", "a Python file object over an `AnyFile`"),
    ("formats._parquet", "_Reader", "_PyarrowFile", "a file as pyarrow reads it"),
    ("_remote.urls", "Parts", "UrlParts", "a URL as a store and a key"),
    ("_wire.failure", "_Parts", "_ExceptionParts", "an exception taken apart"),
    ("stats._words", "_Pieces", "_Phrases", "the phrases that fill in a verdict"),
    ("testing._simulated", "_Posted", "_PostedTask", "a task on the simulated board"),
    ("_measure.page", "_Published", "_OpenPage", "a page of this process"),
    ("_measure.page", "Found", "FoundPage", "a page of another process"),
    ("_remote.parallel", "_Run", "_ParallelRun", "the state of one `in_parallel`"),
    ("backends._ray.handshake", "Tls", "TlsFiles", "the files of certificates that Ray uses"),
    ("backends._ray.link", "_Tls", "_TlsSocket", "TLS on a blocking socket"),
    ("backends._ray.challenge", "Worker", "WorkerEnd", "the worker's end of a challenge"),
    ("backends._ray.challenge", "Driver", "DriverEnd", "the driver's end of a challenge"),
    ("testing._simulated", "_Worker", "_SimulatedWorker", "a simulated worker"),
    ("formats._tar", "_Part", "_TarPart", "bytes of a tar that were read at once"),
    # Type aliases.
    ("_cache.uses", "_Part", "_UseArrays", "blocks, first and last positions of uses"),
    ("_cache.cache", "Make", "MakePiece", "makes the content of a piece"),
    ("_cache.shared", "Make", "MakeBlock", "makes the bytes of a block"),
    ("_files.index", "Make", "MakeIndex", "makes the arrays of an index"),
    ("_memory.guests", "Make", "MakeLeaf", "makes a leaf that is a view"),
    ("backends._base", "Make", "MakeBackend", "makes a backend for a job"),
    ("formats._chunks", "Extent", "ByteRange", "the first byte, and the end"),
    ("formats._messages", "Extent", "MessageRange", "the first byte of a message, and its end"),
    ("_cache.folder", "Room", "FreeSpace", "the free space of a cache folder"),
    ("formats._decoders", "Room", "Allocate", "allocates the array that a field is decoded into"),
    ("formats._recognise", "Found", "FormatClass", "the class of a format that was recognised"),
    ("_files.pieces", "Fetch", "FetchPiece", "fetches the bytes of a piece"),
    ("plan._grouping", "Keys", "KeyArray", "an int64 array of keys"),
    ("_work.samples", "_Loop", "_KeyLoop", "the keys of a loop, its iterator, and its rows"),
    ("_feed.base", "Plan", "AnyPlan", "`OrderPlan` or `SamplerPlan`, as in `AnyFile`"),
    ("_remote.listing", "Range", "NameRange", "names between two names"),
    ("formats._chunks", "Reader", "ReadValue", "reads the value at a position of a footer"),
    ("image._decode", "Scratch", "GetScratch", "returns scratch memory of so many bytes"),
    ("image._dataset", "Source", "ReadImage", "reads the image, the label and the name of a key"),
    # Explain nothing.
    ("backends._desk", "Desk", "TaskExecutor", "executes the tasks of one worker, and makes the replies"),
    ("_system.interrupts", "Living", "LiveObjects", "the added objects that are alive"),
    ("_engine.held", "Held", "EngineLifetime", "which thread uses an engine, and how its workers end"),
    ("_session.reading", "Told", "ProgressListener", "protocol: what a reader reports its progress to"),
    ("_engine.handout", "Handout", "StepResult", "what `Engine.next` returns: a batch, an error, or the end"),
    ("_system.ending", "Instead", "NoBatch", "what an iterator has instead of a batch: an error, or its end"),
    ("_cache.kept", "Kept", "LruCache", "the values that were used last, up to a number of bytes"),
    ("_wire.reply", "Taken", "StrayReceiver", "protocol: where the parent finds the strays of replies"),
    ("formats._samples", "Judged", "FaultRaisingFile", "a file whose errors are `TarFault`s"),
    ("formats._tar", "Bad", "BadRows", "the rows of a tar that cannot be read"),
    ("formats._beside", "Late", "LateIndex", "the index of a tar that is made when it is needed"),
    ("_files.index", "Elsewhere", "OtherIndexes", "indexes that other programs have made"),
    ("_cache.folder", "About", "PieceFileInfo", "key, size and time of the file of a piece"),
    ("_cache.folder", "Noted", "FolderTotals", "bytes of all pieces, and the number of evictions"),
    ("_cache.folder", "Listed", "FolderListing", "the pieces and agendas in a folder"),
    ("_schedule.tuner", "Known", "Findings", "what the tuner found out under the present load"),
    ("_cache.lookout", "Wanted", "WantedPiece", "a piece that a block needs"),
    ("_remote.store", "Stored", "StoredObject", "an object of a store"),
    ("torch._cursor", "Copy", "CopyPosition", "the position of one copy of the dataset"),
    ("plan._grouping", "Inside", "InnerBlocks", "maps the blocks of a nested dataset to keys of the outer one"),
    ("backends._process.relatives", "Itself", "CurrentWorker", "what `current_process()` returns in a worker"),
    ("backends._ray.remote", "End", "ProcessEnd", "how the process of a worker ended"),
]

# `block` is the unit of reading (and, of Python, a `with` block). `window`: of blocks; in the scheduler, of steps.
# `room` is the figure "waited for room", and plain English. `shown` and `found` are no functions; but `found(...)`
# of a cache returns what it has without making it.
_NAMES = [
    ("_fill.cast", "BLOCK", "BYTES_AT_ONCE", "bytes that are converted and checked in one go"),
    ("plan._samplers", "BLOCK", "KEYS_AT_ONCE", "keys that are computed in one numpy call"),
    ("plan._samplers", "_blocks", "_positions", "positions, at most KEYS_AT_ONCE at a time"),
    ("source._packed", "_BLOCK", "_ITEMS_AT_ONCE", "items that are unpacked in one go"),
    ("formats._crc32c", "_BLOCK", "_ROW_BYTES", "bytes of a row of the table"),
    ("formats._crc32c", "_of_blocks", "_of_rows", "the checksum of rows of bytes"),
    ("records._datum", "block", "length_delimited", "a length-delimited field, in the words of protobuf"),
    ("records._datum", "_dump_block", "_dump_length_delimited", "writes a length-delimited field"),
    ("_system.interrupts", "_block", "_deferring", "the `interrupts_deferred` that the main thread is in"),
    ("stats._recent", "WINDOW", "RECENT_SECONDS", "seconds that count as recent"),
    ("_progress", "_WINDOW", "_RECENT_SECONDS", "seconds that count for the rate of a bar"),
    ("formats._tokens", "_Windows", "_MappedSamples", "samples that are views of mapped memory"),
    ("formats._tokens", "_RemoteWindows", "_PartlyMappedSamples", "samples of pieces that are mapped, or else read"),
    ("formats._tokens", "_Ranges", "_ReadSamples", "samples that are read, not mapped"),
    ("backends._base", "room", "workers_that_fit", "how many workers the cluster can hold"),
    ("backends._ray.cluster", "room", "actors_that_fit", "how many actors the cluster can hold"),
    ("_measure.page", "ROOM", "PUBLICATION_BYTES", "bytes of a publication and its head"),
    ("_schedule.tuner", "_ROOM", "_USABLE", "share of the memory's limit that may be used"),
    ("formats._tar", "_room_of", "_allocate_as", "allocates under the name of a field"),
    ("_wire.failure", "shown", "safe_text", "`str(obj)` or `repr(obj)`, which never raises"),
    ("_wire.failure", "_SHOWN", "_MOST_CHARACTERS", "of a repr in a note"),
    ("_feed.base", "shown", "displayed_settings", "the settings that are displayed with the figures"),
    ("_files.index", "shown", "with_progress_bar", "the same items, with a progress bar"),
    ("_fill.misfit", "_shown", "_listed_keys", "a few keys, as a list"),
    ("_progress", "_shown", "_with_bar", "the items of an iterator, with a bar"),
    ("backends._stack", "_shown", "_user_calls", "the calls without the frames of penstock"),
    ("_tools.profile.run", "_shown", "_live_display", "displays the trials while they run"),
    ("records._pack", "SHOWN", "MOST_LISTED", "skipped files that are listed"),
    ("torch._measured", "_SHOWN", "_DISPLAYED_SETTINGS", "the settings that are displayed with the figures"),
    ("_engine.reports", "_MOST_SHOWN", "_MOST_LISTED", "workers that are listed"),
    ("_wire.modules", "_found", "_find_spec", "the spec of a module"),
    ("backends._native_threads", "_found", "_functions_of", "the functions that a library has"),
]

SYMBOLS = [Symbol(P + module, *rest) for module, *rest in _CLASSES + _NAMES]

_TESTS = ("src/", "tests/", "bench/")

MEMBERS = [
    Member(
        "WorkerProcess",
        "worker",
        "seat",
        "a handle has a seat; `worker` is an id",
        r"process|worker",
        ("src/penstock/backends/_process", "tests/unit/test_launch.py"),
    ),
    Member(
        "RemoteWorker",
        "worker",
        "seat",
        "a handle has a seat; `worker` is an id",
        r"remote",
        ("src/penstock/backends/_ray", "tests/on_ray"),
    ),
    Member("Into", "room", "allocate", "allocates an array", r"empty|into|memory", ("src/penstock/",)),
    Member("Cache", "room", "free_space", "returns a `FreeSpace`", r"(self\.)?_?cache", _TESTS),
    Member("Tuner", "_room", "_more_workers_that_fit", "how many more workers fit into the memory"),
    Member(
        "Scheduler",
        "_room",
        "_spacing",
        "the distance between two seqs",
        subclasses=("Assigned", "OneReader"),
        modules=("penstock._schedule.scheduler", "penstock._schedule.assigned", "penstock._schedule.onereader"),
    ),
    Member("Cut", "window", "region", "the region of the image that is resized", r"cut", ("src/penstock/image/",)),
    Member("Tokens", "_windows", "_samples", "where samples are taken from"),
    Member("_RemoteWindows", "_windows", "_mapped", "the samples that are mapped"),
    Member("_RemoteWindows", "_ranges", "_read", "the samples that are read"),
    Member("Draw", "_block", "_keys", "keys that were computed together", modules=("penstock.plan._plan",)),
    Member(
        "Remote",
        "shown",
        "display_url",
        "the URL of an object, for messages",
        r"(self\.)?remote|each\.remote",
        modules=("penstock._remote.store",),
    ),
    Member("_Given", "_shown", "_url", "the URL, for messages"),
    Member(
        "_Given", "found", "below", "the files of a pattern or a folder", r"each", ("src/penstock/_files/listed.py",)
    ),
    Member("Needs", "_found", "_rows", "the rows of each agenda"),
    Member("Shared", "_found", "_find_inventory", "the descriptor of the inventory"),
    Member("JoinedCells", "_found", "_part_of", "the part that has a row, and the row in it"),
    Member(
        "Extents",
        "_found",
        "_raw_samples",
        "the bytes of the samples of some keys",
        subclasses=("Tar",),
        files=("src/penstock/formats/",),
    ),
    Member("Meter", "mark", "snapshot", "takes a `MeterSnapshot`", r"(self\.)?meter"),
    Member("Measures", "_mark", "_snapshot", "takes a `MeterSnapshot`"),
    Member("Loop", "_desk", "_executor", "see `TaskExecutor`", modules=("penstock.backends._ray.actor",)),
    Member(
        "Reader",
        "told",
        "listener",
        "see `ProgressListener`",
        r"batches|(self\._)?reader",
        subclasses=("Batches", "IndexedBatches"),
        modules=("penstock._session.reading",),
    ),
    Member("SharedEpoch", "_told", "_listener", "see `ProgressListener`"),
    Member("Parquet", "_found", "_find_columns", "where the columns of a remote file are"),
]

LOCALS = [
    Local(
        P + "_schedule.scheduler",
        "Scheduler.__init__",
        "room",
        "spacing",
        "the distance between two seqs",
        r"Scheduler|OneReader",
    ),
    Local(P + "formats._decoders", "decoded", "room", "allocate"),
    Local(P + "formats._tar", "Tar.__gather__", "room", "allocate"),
    Local(P + "formats._tar", "Tar.decoded", "room", "allocate"),
    Local(P + "formats._tar", "_room_of", "room", "allocate"),
    Local(P + "_session.tuning", "_bounds", "room", "fitting"),
    Local(P + "_cache.lookout", "Lookout.look", "room", "space"),
    Local(P + "_schedule.tuner", "Tuner._room", "room", "left"),
    Local(P + "image._transform", "Transform.__call__", "window", "region"),
    Local(P + "plan._plan", "OrderPlan.keys", "block", "keys"),
    Local(P + "plan._plan", "OrderPlan.block", "block", "keys"),
    Local(P + "plan._samplers", "RandomSampler.__iter__", "block", "positions"),
    Local(P + "plan._samplers", "SubsetRandomSampler.__iter__", "block", "positions"),
    Local(P + "plan._samplers", "WeightedRandomSampler.__iter__", "block", "positions"),
    Local(P + "plan._samplers", "DistributedSampler.__iter__", "block", "positions"),
    Local(P + "_session.reading", "Reader.__init__", "told", "listener", calls=r"Reader|Batches|IndexedBatches"),
    Local(P + "_session.share", "SharedEpoch.__init__", "told", "listener", calls=r"SharedEpoch"),
    Local(P + "_session.share", "share", "told", "listener"),
    Local(P + "_measure.meter", "Meter.keep", "mark", "snapshot"),
    Local(P + "_session.measures", "Measures.sums", "mark", "snapshot"),
    Local(P + "backends._process.worker", "main", "desk", "executor"),
    Local(P + "backends._ray.actor", "serve", "desk", "executor"),
    Local(P + "backends._ray.actor", "_serve", "desk", "executor"),
    Local(P + "backends._ray.actor", "Loop.__init__", "desk", "executor"),
    Local(P + "_cache.pieces", "mapped", "mark", "stamp"),
]

# Modules whose name was that of their class.
MODULES = {
    P + "backends._desk": P + "backends._executor",
    P + "_engine.held": P + "_engine.lifetime",
    P + "_engine.handout": P + "_engine.result",
    P + "_cache.kept": P + "_cache.lru",
}

_S = "src/penstock/"
TEXTS = [
    Text("tests/model/world.py", '"_in_order", "_room", "_log"', '"_in_order", "_spacing", "_log"'),
    Text("tests/model/world.py", "spare=setting.spare, room=setting", "spare=setting.spare, spacing=setting"),
    Text(_S + "formats/_tar.py", "PERF401 - `room` counts them", "PERF401 - `allocate` counts them"),
    Text(_S + "plan/_plan.py", "the r-th block of them.", "the r-th part of them."),
    Text(
        _S + "plan/_plan.py",
        "where this rank's block of the step begins",
        "where this rank's part of the step begins",
    ),
    Text(
        _S + "plan/_samplers.py",
        "each computes blocks of `KEYS_AT_ONCE` keys",
        "each computes `KEYS_AT_ONCE` keys at a time",
    ),
    Text(
        _S + "_fill/cast.py",
        "Writes block by block, and checks each block before the next.",
        "Writes part by part, and checks each part before the next.",
    ),
    Text(
        _S + "_fill/cast.py",
        "converted in blocks that fit into the processor's cache",
        "converted in parts that fit into the processor's cache",
    ),
    Text(_S + "stats/_recent.py", "that is older than the window;", "that is older than RECENT_SECONDS;"),
    Text(
        _S + "_cache/pieces.py",
        "The bytes of a piece, and the mark of its file.",
        "The bytes of a piece, and the stamp of its file.",
    ),
    Text(
        _S + "_cache/pieces.py",
        "The bytes of the file with the mark `checked`",
        "The bytes of the file with the stamp `checked`",
    ),
    Text("docs/decisions/0017-prefetch.md", "a tree of `Field`s by key", "a tree of `FieldCast`s by key"),
    Text("docs/decisions/0022-interrupts.md", "`Changes`", "`InterruptSafeCondition`"),
]
