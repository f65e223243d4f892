"""Rules for errors about files: locks, corruption, full disks."""

from __future__ import annotations

import errno

from ..doctor.remedies import LOCKED, PROTECT, READ_AROUND, READ_BOUNDED, WRITE
from .rules import Fact, Rank, Rule

_NEVER_UNLOCK = (
    "Do not disable locking (HDF5_USE_FILE_LOCKING=FALSE) to write: four writers without locks lose most of "
    "the data, without an error."
)
_ONE_OWNER = (
    "With several writers, let each write a part of its own and merge them (`hold.write`, `consolidate()`), or let one "
    "process write for all (`holdfast serve`)."
)

RULES = (
    Rule(
        name="h5_lock",
        title="HDF5: unable to lock file",
        errno=errno.EAGAIN,
        needles=("unable to lock file",),
        # On Windows the errno is 0, and error 33 is a lock violation.
        pattern=r"unable to lock file(?!.*errno = (?!11\b|35\b)(?!.*GetLastError\(\) = 33\b))",
        rank=Rank.CAUSE,
        says=(
            "Another process (or another handle in this process, opened in another mode) has the file open. HDF5 "
            "locks the entire file: a writer needs it exclusively, readers share it. Mode 'w' has already emptied the "
            "file when this error is raised, because HDF5 truncates before it locks."
        ),
        mistaken_for="A limit of descriptors or processes, because the errno is 11 here; or a broken file system.",
        facts=(Fact.LOCKS,),
        advice=(
            "Close the file in the process that holds it, or stop that process. A handle inherited over fork keeps "
            "the lock too.",
            _ONE_OWNER,
            _NEVER_UNLOCK,
        ),
        remedy=WRITE,
    ),
    Rule(
        name="h5_no_locks",
        title="HDF5: this file system does not support locks",
        needles=("unable to lock file", "unable to unlock file"),
        pattern=r"unable to (un)?lock file.*errno = (?!11\b|35\b)(?!.*GetLastError\(\) = 33\b)\d",
        rank=Rank.CAUSE,
        says=(
            "The file system rejected the lock call: it is a network or FUSE mount without locks (NFS without lockd, "
            "Lustre without -o flock, an object store). No process holds the file."
        ),
        mistaken_for="Another process that has the file open. That gives errno 11.",
        advice=(
            "To read, set HDF5_USE_FILE_LOCKING=FALSE or use h5py.File(…, 'r', locking=False).",
            "To write, use a local disk and copy the finished file. " + _ONE_OWNER,
        ),
        remedy=WRITE,
    ),
    Rule(
        name="h5_flags",
        title="HDF5: file is already open for write",
        needles=("already open for write", "already open for swmr", "h5clear"),
        rank=Rank.CAUSE,
        says=(
            "A flag in the file says that it is open for writing. Either a writer has it open, or the last writer "
            "died before it could clear the flag; then the data it had not flushed is lost."
        ),
        mistaken_for="A lock. A lock disappears with its process, but this flag stays in the file.",
        facts=(Fact.LOCKS, Fact.HEAD),
        advice=(
            "Make sure that no process writes to the file. Then copy it and clear the flag with `h5clear -s COPY`.",
            "Compare the number of rows in the copy with a count kept elsewhere before you trust it.",
        ),
        remedy=WRITE,
    ),
    Rule(
        name="h5_twice",
        title="HDF5: this process has the file open already",
        needles=("file which is already open", "already open for read-only"),
        rank=Rank.CAUSE,
        says=(
            "This process already has the file open through another handle. A file open for reading cannot be opened "
            "for writing, and mode 'w' cannot truncate a file that is open at all. A notebook cell that failed "
            "half-way keeps its handle."
        ),
        mistaken_for="Another process, or a corrupt file. Another process gives `unable to lock file`.",
        facts=(Fact.LOCKS,),
        advice=(
            "Close the other handle: use `with h5py.File(…) as f:` everywhere, and keep no handle in a Dataset.",
            "In a notebook, restart the kernel; exceptions keep handles alive too, through their traceback.",
        ),
        remedy=PROTECT,
    ),
    Rule(
        name="h5_truncated",
        title="HDF5: truncated file",
        needles=("truncated file",),
        pattern=r"truncated file(?! read)",  # Pillow's message about TIFF files
        rank=Rank.CAUSE,
        says=(
            "The file is shorter than its header says: a copy or download was interrupted, the disk was full, or its "
            "writer died or is still writing."
        ),
        mistaken_for="A wrong version of h5py or HDF5.",
        facts=(Fact.HEAD, Fact.LOCKS, Fact.DISK),
        advice=(
            "Compare size and checksum with the source, and copy the file again.",
            "If a process still writes the file, wait. Write under a temporary name and rename after closing.",
            "Do not trust a file whose writer was killed, even if it opens: write it again.",
        ),
        remedy=READ_AROUND,
    ),
    Rule(
        name="h5_signature",
        title="HDF5: file signature not found",
        needles=("file signature not found", "unable to locate superblock"),
        rank=Rank.CAUSE,
        says=(
            "The file does not begin with the HDF5 signature. It is empty (its writer has not flushed yet, or mode "
            "'w' emptied it), its beginning is missing, or it is something else: a git-lfs pointer, an HTML error "
            "page, gzip, NetCDF-3."
        ),
        mistaken_for="A corrupt file that could be repaired.",
        facts=(Fact.HEAD, Fact.LOCKS),
        advice=(
            "Look at the file: `file NAME`, `head -c 200 NAME`. `git lfs pull` downloads the data behind a pointer.",
            "If a process is writing the file, wait until it has closed it.",
        ),
        remedy=READ_AROUND,
    ),
    Rule(
        name="tfrecord_start",
        title="TFRecord: corrupted record at 0",
        needles=("corrupted record at 0",),
        pattern=r"corrupted record at 0\b",
        rank=Rank.CAUSE,
        says=(
            "The first record does not match its checksum, so the file is most likely not a plain TFRecord file: it "
            "is compressed with GZIP or ZLIB but read as plain, or it is a git-lfs pointer or an HTML error page."
        ),
        mistaken_for="Corrupt data.",
        facts=(Fact.HEAD,),
        advice=(
            "`holdfast inspect FILE` shows what the file is; it detects GZIP and ZLIB by content.",
            "In TensorFlow, use TFRecordDataset(files, compression_type='GZIP').",
            "`holdfast verify FILE` checks every record; `holdfast salvage FILE OUT` recovers the intact ones.",
        ),
        remedy=READ_AROUND,
    ),
    Rule(
        name="tf_checkpoint",
        title="TensorFlow: a checkpoint cannot be read",
        needles=("not an sstable", "to be an sstable", "unable to open table file", "restored bytes"),
        rank=Rank.CAUSE,
        says=(
            "TensorFlow tried to restore a checkpoint, but the file is not one or is incomplete: the path ends in "
            "`.data-00000-of-…` or `.index` instead of being the prefix, a file of the checkpoint was not copied, or "
            "its writer was killed."
        ),
        mistaken_for="Corrupt training data, because DataLossError is raised for both.",
        facts=(Fact.HEAD,),
        advice=(
            "Pass the common prefix of the checkpoint's files, as `tf.train.latest_checkpoint(folder)` returns it.",
            "Compare the sizes of `.index` and `.data-*` with the source, and copy them again. If the writer was "
            "killed, use the previous checkpoint.",
        ),
    ),
    Rule(
        name="tfrecord",
        title="TFRecord: DataLossError",
        needles=("datalosserror", "corrupted record at", "truncated record at", "data loss: ", "data_loss: "),
        # A line such as "train data loss: 0.31" must not match.
        pattern=r"DataLossError|(corrupted|truncated) record at|(^|[\]:'\"(] ?)data[ _]loss: (?!\d)",
        rank=Rank.CAUSE,
        says=(
            "A record does not match its checksum, or the file ends inside a record: bytes changed in transit, two "
            "processes wrote the file at once, a copy was interrupted, or the writer is still writing."
        ),
        mistaken_for=(
            "Several processes that read one file, which is safe. Also note that ignore_errors() does not skip the "
            "corrupt record but drops the rest of the file."
        ),
        facts=(Fact.HEAD, Fact.DISK),
        advice=(
            "`holdfast verify FILE` distinguishes corruption from an unfinished file, and lists every corrupt record.",
            "`holdfast salvage FILE OUT` writes all intact records to a new file, including those after a corrupt one.",
            "Use one writer per file, under a temporary name until it is closed. Keep row counts elsewhere: a file "
            "cut between two records raises no error.",
        ),
        remedy=READ_AROUND,
    ),
    Rule(
        name="EAGAIN_lock",
        title="A lock is held by another process",
        errno=errno.EAGAIN,
        needles=("resource temporarily unavailable", "errno 11", "blockingioerror", "error(11,"),
        pattern=r"temporarily unavailable|errno 11\b|BlockingIOError|error\(11, ",
        near=("flock(", "lockf(", "f_setlk", "filelock", "portalocker", "lock_nb"),
        rank=Rank.CAUSE,
        says="The code called flock or lockf without waiting (LOCK_NB), and another process holds the lock.",
        mistaken_for="Too many open files (errno 24), or too many processes, because fork gives the same errno.",
        facts=(Fact.LOCKS,),
        advice=(
            "Wait for the holder: call without LOCK_NB, or retry in a loop with a timeout.",
            "A child that inherited the descriptor keeps an flock after its parent has exited: stop the child too.",
            "Closing any descriptor of the file releases the lockf locks of the process: use flock for files opened "
            "twice.",
        ),
        remedy=LOCKED,
    ),
    Rule(
        name="ENOLCK",
        title="No locks available",
        errno=errno.ENOLCK,
        needles=("no locks available", "enolck", "errno 37", "error(37,"),
        pattern=r"no locks available|\bENOLCK\b|errno 37\b|error\(37, ",
        rank=Rank.CAUSE,
        says=(
            "The file system cannot lock. Usually it is NFS and its lock service (lockd, statd) cannot be reached, "
            "for example a home directory on NFS where caches keep their lock files. No process holds the lock."
        ),
        mistaken_for=(
            "A lock that another process holds. That gives errno 11. A library that retries for ever hangs here."
        ),
        advice=(
            "Keep caches and lock files on a local disk: set HF_HOME, XDG_CACHE_HOME, TORCH_HOME or TMPDIR.",
            "Mount NFS with working locks (version 4 has them built in), or with `local_lock=flock` if only one "
            "machine uses the files.",
        ),
    ),
    Rule(
        name="ESTALE",
        title="Stale file handle",
        errno=errno.ESTALE,
        needles=("stale file handle", "stale nfs file handle", "estale", "errno 116", "error(116,"),
        pattern=r"stale (nfs )?file handle|\bESTALE\b|errno 116\b|error\(116, ",
        rank=Rank.CAUSE,
        says=(
            "On a network file system (NFS, some FUSE mounts), the file or folder was removed or replaced on the "
            "server while this process had it open, or the server now exports another disk. The open handle no longer "
            "works."
        ),
        mistaken_for="A corrupt file or a broken network. Other files on the same mount can still be read.",
        advice=(
            "Open the file again by its name. Restart a worker whose current folder is gone.",
            "Do not replace or remove files that other processes read: write a new version under a new name.",
            "If every path on the mount gives this error, mount it again.",
        ),
        remedy=WRITE,
    ),
    Rule(
        name="inotify_watches",
        title="No more inotify watches for this user",
        errno=errno.ENOSPC,
        needles=("inotify watch", "inotify_add_watch", "number of file watchers", "inotify watches"),
        rank=Rank.CAUSE,
        says=(
            "The user has reached fs.inotify.max_user_watches. inotify reports this as ENOSPC, which here has nothing "
            "to do with a disk."
        ),
        mistaken_for="A full disk.",
        facts=(Fact.INOTIFY,),
        advice=(
            "Watch fewer files: exclude data folders, node_modules, .git and checkpoints.",
            "As root: `sysctl fs.inotify.max_user_watches=524288`.",
        ),
    ),
    Rule(
        name="EDQUOT",
        title="Disk quota exceeded",
        errno=errno.EDQUOT,
        needles=("quota exceeded", "edquot", "errno 122", "error(122,"),
        pattern=r"disk quota exceeded|\bEDQUOT\b|errno 122\b|error\(122, ",
        rank=Rank.CAUSE,
        says=(
            "This user, group or project has used all the bytes or files that its quota allows, however empty the "
            "disk is."
        ),
        mistaken_for="A full disk, although `df` shows free space.",
        facts=(Fact.DISK,),
        advice=(
            "`quota -s`, or `lfs quota -h -u $USER PATH` on Lustre, shows which quota is reached; the number of files "
            "counts too.",
            "Put caches and checkpoints elsewhere: HF_HOME, XDG_CACHE_HOME, TORCH_HOME, TMPDIR. The file that was "
            "being written is incomplete.",
        ),
        remedy=WRITE,
    ),
    Rule(
        name="EIO",
        title="Input/output error",
        errno=errno.EIO,
        needles=("input/output error", "errno 5]", "errno = 5,", "error(5,"),
        pattern=r"input/output error|errno 5\]|errno ?= ?5,|error\(5, ",
        rank=Rank.CAUSE,
        says=(
            "The device or the server behind the file failed: a bad disk, a network mount or FUSE mount that lost its "
            "server, a thin volume without space. Writing to a terminal that was closed gives the same errno."
        ),
        mistaken_for="A corrupt file. The bytes could not be read at all; another copy, or a retry, may be intact.",
        facts=(Fact.DISK,),
        advice=(
            "Look at the kernel's log: `dmesg -T | tail -50`, and `mount` for a network file system; `smartctl -a` "
            "for a local disk.",
            "A program started from a terminal needs `nohup`, or its output in a file, to outlive the terminal.",
            "Do not trust what was being written. `holdfast verify FILE` checks it; copy what can still be read.",
        ),
        remedy=READ_AROUND,
    ),
    Rule(
        name="archive_truncated",
        title="An archive ends too early",
        needles=(
            "unexpected end of data",
            "before the end-of-stream marker",
            "file is not a zip file",
            "pytorchstreamreader failed",
        ),
        # A codec of Python and JSON parsers use the same words.
        pattern=r"^(?!.*(codec can't decode|json)).*(end of data|end-of-stream|not a zip file|StreamReader failed)",
        rank=Rank.CAUSE,
        says=(
            "A tar, gzip, zip or torch checkpoint file ends inside a member: a download or copy was interrupted, the "
            "disk was full, or its writer was killed or is still writing."
        ),
        mistaken_for="A wrong format or version. `tar tf` may list the first members and still fail at the end.",
        facts=(Fact.HEAD, Fact.DISK),
        advice=(
            "Compare size and checksum with the source, and copy the file again.",
            "`holdfast verify FILE` says where a tar shard is damaged; `tar -xf FILE` unpacks the members before that.",
            "Write under a temporary name and rename after closing, so that no reader sees half a file.",
        ),
        remedy=READ_AROUND,
    ),
    Rule(
        name="pickle_truncated",
        title="A pickle ends too early, or is none",
        needles=("ran out of input", "pickle data was truncated", "invalid load key", "unpickling stack underflow"),
        rank=Rank.CAUSE,
        says=(
            "The pickled data is empty, cut off, or something else: its writer was killed or has not flushed yet, two "
            "processes wrote the file at once, or it is a git-lfs pointer (`invalid load key, 'v'`). In the start of "
            "a spawned process, the parent died while it sent the arguments."
        ),
        mistaken_for="A wrong version of Python or of the class.",
        facts=(Fact.HEAD, Fact.DISK),
        advice=(
            "Look at the file: `ls -l NAME`, `head -c 200 NAME`. `git lfs pull` downloads the data behind a pointer.",
            "Write to a temporary name, flush, os.fsync, then os.replace: readers see the old or the new file.",
            "In a spawned process, look for the error of the parent, which comes first.",
        ),
    ),
    Rule(
        name="image",
        title="An image cannot be decoded",
        needles=(
            "cannot identify image file",
            "unidentifiedimageerror",
            "image file is truncated",
            "broken data stream",
        ),
        pattern=r"cannot identify image file|UnidentifiedImageError|image file is truncated|broken data stream when",
        rank=Rank.CAUSE,
        says=(
            "Pillow found no image format that it knows, or the file ends too early: the download was interrupted or "
            "is an HTML error page, the file is empty, or it is a format without a plugin (HEIC, AVIF, SVG). For a "
            "file object, its position may be at the end of the data: call seek(0)."
        ),
        mistaken_for="A bug in Pillow, or a wrong file extension, which Pillow ignores.",
        facts=(Fact.HEAD, Fact.DISK),
        advice=(
            "Look at the file: `file NAME`, `head -c 200 NAME`. Load it again if it is short or a web page.",
            "Check all images once before the training (Image.open(…).verify()), and list those that fail.",
            "Skip bad samples while reading and count them; do not set LOAD_TRUNCATED_IMAGES, which fills in grey.",
        ),
        remedy=READ_AROUND,
    ),
    Rule(
        name="h5_open",
        title="HDF5: the file cannot be opened",
        needles=(
            "synchronously open file",
            "synchronously create file",
            "unable to open file",
            "unable to create file",
        ),
        pattern=r"synchronously|unable to (open|create) file ?(\(|: name =)|H5F\w+\(\): unable",
        rank=Rank.SIGN,
        says=(
            "h5py could not open the file. The reason is in the parentheses of the message, but holdfast does not "
            "recognize it."
        ),
        mistaken_for=(
            "A corrupt file. A wrong path, missing permissions or a lack of descriptors gives the same message."
        ),
        facts=(Fact.HEAD, Fact.LOCKS, Fact.DESCRIPTORS),
        advice=(
            "Check that the path exists for the process that opens it: workers and containers may have other folders.",
            "Check that no other process writes to the file.",
        ),
    ),
)

# These come last: they apply only if no specific rule matches.
GENERAL = (
    Rule(
        name="ENOSPC",
        title="No space left on device",
        errno=errno.ENOSPC,
        needles=("no space left on device", "enospc", "errno 28", "error(28,"),
        pattern=r"no space left|\bENOSPC\b|errno 28\b|error\(28, ",
        rank=Rank.CAUSE,
        says=(
            "A file system has no free space or no free inodes (many small files). It may not be the disk you expect: "
            "/dev/shm and /tmp are often separate file systems."
        ),
        mistaken_for="A full data disk when /dev/shm is full. The inotify watch limit gives the same errno.",
        facts=(Fact.DISK, Fact.SHM),
        advice=(
            "Run `df -h` and `df -i` on the path. Deleted files that are still open count too: `lsof +L1`.",
            "The file that was being written is incomplete, especially if it is HDF5. `holdfast verify` checks "
            "TFRecord files.",
            "Put temporary files elsewhere: TMPDIR=/big/disk.",
        ),
        remedy=WRITE,
    ),
    Rule(
        name="ENOENT",
        title="No such file or directory",
        errno=errno.ENOENT,
        needles=("no such file or directory", "filenotfounderror", "enoent", "errno 2]", "error(2,"),
        pattern=r"no such file or directory|FileNotFoundError|\bENOENT\b|errno 2\]|error\(2, ",
        rank=Rank.SIGN,
        says=(
            "The path, or a folder in it, does not exist for this process: the name is wrong, a relative path is used "
            "in another current folder, a disk is not mounted in this container, a symbolic link is broken, or "
            "another process has removed the file or has not written it yet."
        ),
        mistaken_for="Missing permissions, which give errno 13, or too many open files, which gives errno 24.",
        advice=(
            "Check from the process that failed: `ls -l /proc/PID/cwd`, and `ls` inside its container.",
            "Pass absolute paths to workers, and let one process create folders before the others start.",
            "Read only finished files: write under a temporary name and rename.",
        ),
        remedy=READ_BOUNDED,
    ),
)
