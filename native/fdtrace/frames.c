// Reads the Python frames of the calling thread without the GIL.
//
// CPython releases the GIL around nearly every call that makes or closes a descriptor, so a hook rarely holds it. It
// does not need it: only the thread itself changes its chain of frames, and a frame keeps its code object alive. The
// hook only reads memory, as CPython's faulthandler does. Line numbers are decoded later from the line table.
//
// The handler of a signal may have interrupted the interpreter between two of its stores, where the innermost frame is
// not set up or its code is freed already. There, every read is a system call, which fails where a load would crash.
#include "fdtrace.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>

// Offsets in bytes. 3.11 and 3.12: from their headers. 3.13 and 3.14: from _Py_DebugOffsets at the start of _PyRuntime.
struct offsets {
    int16_t tstate_frame; // thread state -> cframe, or -> current frame
    int16_t cframe_frame; // cframe -> current frame, -1: there is no cframe (which is on the C stack)
    int16_t code, previous, instr, owner;
    int16_t first_line, file, name, line_table, first_traceable, bytecode;
    int16_t ascii_bytes, compact_bytes;
    int16_t version; // -1: code objects are not numbered
};
static const struct offsets OFFSETS_311 = {56, 8, 32, 48, 56, 69, 72, 112, 128, 136, 168, 184, 48, 72, -1};
static const struct offsets OFFSETS_312 = {56, 0, 0, 8, 56, 70, 68, 112, 128, 136, 176, 192, 40, 56, 92};
enum { TEXT_LENGTH = 16, TEXT_STATE = 32, BYTES_SIZE = 16, BYTES_DATA = 32, OBJECT_TYPE = 8 };

static struct {
    uint32_t version;
    int known;
    struct offsets at;
    void *(*thread_state)(void);
    int (*is_finalizing)(void);
    void *code_type, *text_type, *bytes_type;
    int (*backtrace)(void **, int);
} py;

#define READ(type, base, offset) (*(type *)((const char *)(base) + (offset)))
#define FRAME_BYTES 80u // what is read of a frame, and of a code object, lies in that many bytes
#define CODE_BYTES 256u

static int read_debug_offsets(void) {
    const uint64_t *words = dlsym(RTLD_DEFAULT, "_PyRuntime");
    if (!words || memcmp(words, "xdebugpy", 8) || words[1] >> 16 != py.version >> 16) {
        return 0;
    }
    if (words[2]) {
        return 0; // free-threaded: the chain of frames may be read, the line table may not
    }
    int is_313 = py.version >> 16 == 0x030d;
    const uint64_t *thread = words + 3 + 3 + (is_313 ? 13 : 16), *frame = thread + 9, *code = frame + (is_313 ? 6 : 8);
    if (code[9] > CODE_BYTES || frame[3] + 8 > FRAME_BYTES || frame[5] >= FRAME_BYTES) {
        return 0;
    }
    py.at = (struct offsets){
        .tstate_frame = (int16_t)thread[4],
        .cframe_frame = -1,
        .previous = (int16_t)frame[1],
        .code = (int16_t)frame[2],
        .instr = (int16_t)frame[3],
        .owner = (int16_t)frame[5],
        .file = (int16_t)code[1],
        .name = (int16_t)code[3],
        .line_table = (int16_t)code[4],
        .first_line = (int16_t)code[5],
        .bytecode = (int16_t)code[9],
        .first_traceable = -1,
        .ascii_bytes = 40,
        .compact_bytes = 56,
        .version = (int16_t)(code[5] + 24),
    };
    return 1;
}

void hf_find_python(void) {
    const unsigned long *version = dlsym(RTLD_DEFAULT, "Py_Version");
    py.thread_state = (void *(*)(void))dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
    py.is_finalizing = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
    if (!py.is_finalizing) {
        py.is_finalizing = (int (*)(void))dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
    }
    py.code_type = dlsym(RTLD_DEFAULT, "PyCode_Type");
    py.text_type = dlsym(RTLD_DEFAULT, "PyUnicode_Type");
    py.bytes_type = dlsym(RTLD_DEFAULT, "PyBytes_Type");
    py.version = version ? (uint32_t)*version : 0;
    py.known = 0;
    if (py.thread_state && py.is_finalizing && py.code_type) {
        switch (py.version >> 16) {
        case 0x030b:
            py.at = OFFSETS_311;
            py.known = 1;
            break;
        case 0x030c:
            py.at = OFFSETS_312;
            py.known = 1;
            break;
        case 0x030d:
        case 0x030e:
            py.known = read_debug_offsets();
            break;
        }
    }
    if (hf_options & HF_NATIVE && !py.backtrace) {
        py.backtrace = (int (*)(void **, int))dlsym(RTLD_DEFAULT, "backtrace");
        void *unused[2];
        if (py.backtrace) {
            py.backtrace(unused, 2); // its first call loads libgcc_s
        }
    }
}

// The unwinder may take a lock, of the dynamic loader or of registered code, that another thread held at the fork.
void hf_forget_unwinder(void) { py.backtrace = NULL; }

uint32_t hf_python_version(void) { return py.version; }
int hf_python_known(void) { return py.known; }
int hf_python_finalizing(void) { return py.known && py.is_finalizing(); }

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9fb21c651e98df25ull;
    return hash ^ (hash >> 29);
}

#define MAX_NAME 4096u
#define MAX_TABLE 65536u

static const char *text_of(const char *text, uint32_t *bytes, uint8_t *width) {
    uint32_t state = READ(uint32_t, text, TEXT_STATE);
    uint64_t length = READ(uint64_t, text, TEXT_LENGTH);
    *width = (uint8_t)(state >> 2 & 7);
    uint64_t all = length * *width;
    *bytes = (uint32_t)(all > MAX_NAME ? MAX_NAME : all);
    if (!(state >> 5 & 1)) { // an instance of a subclass of str: its characters are elsewhere
        return READ(char *, text, py.at.compact_bytes);
    }
    return text + (state >> 6 & 1 ? py.at.ascii_bytes : py.at.compact_bytes);
}

static uint32_t table_bytes(const char *table) {
    uint64_t size = READ(uint64_t, table, BYTES_SIZE);
    return size > MAX_TABLE ? 0 : (uint32_t)size; // without it, the line is that of the function
}

static uint64_t word_at(const char *from) {
    uint64_t word;
    memcpy(&word, from, 8);
    return word;
}

static uint64_t mix_bytes(uint64_t hash, const char *from, uint64_t bytes) {
    uint64_t sum = bytes;
    if (bytes < 8) {
        while (bytes--) {
            sum = sum << 8 | (unsigned char)from[bytes];
        }
    } else {
        const char *last = from + bytes - 8; // may overlap the word before it
        for (; from < last; from += 8) {
            sum = (sum << 7 | sum >> 57) + word_at(from);
        }
        sum = (sum << 7 | sum >> 57) + word_at(last);
    }
    return mix(hash, sum);
}

// Code that does not come from a file, which a program may make without end.
static inline __attribute__((always_inline)) int is_generated(const char *code) {
    uint32_t bytes;
    uint8_t width;
    const char *file = text_of(READ(char *, code, py.at.file), &bytes, &width);
    return bytes && *file == '<' && !(bytes > 7 && !memcmp(file, "<frozen", 7));
}

int hf_is_generated(const char *code) { return is_generated(code); }

static int contains(const char *text, uint32_t bytes, const char *word) {
    return !!memmem(text, bytes, word, strlen(word));
}

// Code of Python or of an installed package: most of a stack. The frames of the program are what it is kept for.
int hf_is_library(const char *code) {
    uint32_t bytes;
    uint8_t width;
    const char *file = text_of(READ(char *, code, py.at.file), &bytes, &width);
    return (bytes && *file == '<') || contains(file, bytes, "-packages/") || contains(file, bytes, "/lib/python3");
}

// Tells code objects apart even if one was freed and another has its address. Python 3.12 and later number them. Before
// that, code that exec ran may have all the addresses of the code before it: then its names and line table are hashed.
static inline __attribute__((always_inline)) uint64_t identity_of(const char *code) {
    const char *table = READ(char *, code, py.at.line_table);
    uint64_t hash = mix((uint64_t)code, (uint64_t)table);
    if (py.at.version >= 0 && READ(uint32_t, code, py.at.version)) {
        return mix(hash, READ(uint32_t, code, py.at.version)) | 1ull << 63;
    }
    const char *file = READ(char *, code, py.at.file), *name = READ(char *, code, py.at.name);
    hash = mix(hash, (uint64_t)name ^ (uint64_t)READ(uint32_t, code, py.at.first_line) << 40);
    hash = mix(hash, (uint64_t)file + READ(uint64_t, file, TEXT_LENGTH));
    if (is_generated(code)) {
        uint32_t bytes;
        uint8_t width;
        const char *text = text_of(file, &bytes, &width);
        hash = mix_bytes(hash, text, bytes);
        text = text_of(name, &bytes, &width);
        hash = mix_bytes(hash, text, bytes);
        hash = mix_bytes(hash, table + BYTES_DATA, table_bytes(table));
    }
    return hash | 1ull << 63;
}

uint64_t hf_code_identity(const char *code) { return identity_of(code); }

// -- Frames ----------------------------------------------------------------------------------------------------------

#define MOST_STACK 8192u // bytes of C stack between a hook and the interpreter that are searched for a signal's frame
#define WITHOUT_CFRAME 2048u

// The kernel saves the segment registers of what a signal has interrupted as this word, 8 bytes off a multiple of 16. A
// stale one costs time only.
#define SAVED_SEGMENTS 0x002b000000000033ull

__attribute__((no_sanitize("address"))) static int has_signal_frame(uintptr_t from, uintptr_t end) {
    uint64_t found = 0;
    for (const uint64_t *at = (const uint64_t *)((from & ~15ul) + 8); (uintptr_t)at < end && !found; at += 8) {
        found = (at[0] == SAVED_SEGMENTS) | (at[2] == SAVED_SEGMENTS) | (at[4] == SAVED_SEGMENTS) |
                (at[6] == SAVED_SEGMENTS);
    }
    return found != 0;
}

// Returns whether the calls between the interpreter and this hook may have begun in the handler of a signal.
static int may_be_signal(const char *thread, const struct hf_frames *out) {
    uintptr_t from = (uintptr_t)(out + 1), end = from + WITHOUT_CFRAME;
    if (py.at.cframe_frame >= 0) {
        end = READ(uintptr_t, thread, py.at.tstate_frame);
        if (end - (uintptr_t)thread < 4096) {
            return 0; // the thread's first one, which is part of its state: no frame
        }
        if (end - from > MOST_STACK) {
            return 1; // also if the handler has a stack of its own
        }
    }
    return has_signal_frame(from, end);
}

// Copies several pieces of this process's memory, or says that one is not there.
static int fetch(struct iovec *to, const struct iovec *from, int pieces) {
    size_t bytes = 0;
    for (int i = 0; i < pieces; i++) {
        bytes += to[i].iov_len;
    }
    return hf_syscall6(SYS_process_vm_readv, hf_thread_id(), (long)to, pieces, (long)from, pieces, 0) == (long)bytes;
}

static int fetch_one(void *to, const void *from, size_t bytes) {
    struct iovec here = {to, bytes}, there = {(void *)from, bytes};
    return fetch(&here, &there, 1);
}

// Checks all that is read of a code object later: its head, then those of its file name, its name and its line table,
// then the first and the last byte of each.
static int is_whole_code(const char *code) {
    char copy[CODE_BYTES], heads[3][40], bytes[6];
    if (!fetch_one(copy, code, (size_t)py.at.bytecode) || READ(void *, copy, OBJECT_TYPE) != py.code_type) {
        return 0;
    }
    const char *parts[3] = {READ(char *, copy, py.at.file), READ(char *, copy, py.at.name),
                            READ(char *, copy, py.at.line_table)};
    struct iovec to[6], from[6];
    for (int i = 0; i < 3; i++) {
        to[i] = (struct iovec){heads[i], sizeof heads[i]};
        from[i] = (struct iovec){(void *)parts[i], sizeof heads[i]};
    }
    if (!fetch(to, from, 3)) {
        return 0;
    }
    int pieces = 0;
    for (int i = 0; i < 3; i++) {
        if (READ(void *, heads[i], OBJECT_TYPE) != (i < 2 ? py.text_type : py.bytes_type)) {
            return 0;
        }
        uint32_t length = i < 2 ? 0 : table_bytes(parts[i]);
        uint8_t width;
        const char *data = i < 2 ? text_of(parts[i], &length, &width) : parts[i] + BYTES_DATA;
        if (length) {
            to[pieces] = (struct iovec){bytes + pieces, 1}, from[pieces++] = (struct iovec){(void *)data, 1};
            to[pieces] = (struct iovec){bytes + pieces, 1};
            from[pieces++] = (struct iovec){(void *)(data + length - 1), 1};
        }
    }
    return fetch(to, from, pieces);
}

// Compiled twice: a walk that does not doubt its frames has nothing to ask at each of them.
static inline __attribute__((always_inline)) uint64_t walk(struct hf_frames *out, const char *thread, uint64_t hash,
                                                           int doubtful) {
    char copy[FRAME_BYTES];
    const char *frame = READ(char *, thread, py.at.tstate_frame);
    if (frame && py.at.cframe_frame >= 0) {
        frame = READ(char *, frame, py.at.cframe_frame);
    }
    // A chain that is not set up may lead in a circle.
    for (unsigned steps = 0; frame && steps < 8 * HF_MAX_FRAMES; steps++) {
        const char *at = frame;
        if (doubtful) {
            if (!fetch_one(copy, frame, sizeof copy)) {
                break;
            }
            at = copy;
        }
        frame = READ(char *, at, py.at.previous);
        if (READ(unsigned char, at, py.at.owner) >= 3) {
            continue; // a shim between C and Python frames
        }
        // Python 3.14 keeps a tag in the low bits of a reference.
        const char *code = (const char *)(READ(uintptr_t, at, py.at.code) & ~(uintptr_t)3);
        if (!code || (doubtful ? !is_whole_code(code) : READ(void *, code, OBJECT_TYPE) != py.code_type)) {
            continue;
        }
        if (out->count == HF_MAX_FRAMES) {
            out->cut = 1;
            break;
        }
        long instr = READ(char *, at, py.at.instr) - (code + py.at.bytecode);
        // A frame that has not begun to run yet is none for Python either.
        if (py.at.first_traceable >= 0 && READ(unsigned char, at, py.at.owner) == 0 &&
            instr < 2l * READ(int, code, py.at.first_traceable)) {
            continue;
        }
        out->code[out->count] = code;
        out->instr[out->count++] = (uint32_t)instr;
        hash = mix(hash, identity_of(code) + (uint64_t)instr);
    }
    return hash;
}

static __attribute__((noinline, cold)) uint64_t walk_doubtful(struct hf_frames *out, const char *thread,
                                                              uint64_t hash) {
    return walk(out, thread, hash, 1);
}

void hf_capture(struct hf_frames *out, void *caller) {
    out->count = out->cut = 0;
    out->native = 1;
    out->address[0] = caller;
    uint64_t hash = mix(0x5bd1e995, (uint64_t)caller);
    const char *thread = py.known && !py.is_finalizing() ? py.thread_state() : NULL;
    if (thread) {
        hash = may_be_signal(thread, out) ? walk_doubtful(out, thread, hash) : walk(out, thread, hash, 0);
    }
    if (py.backtrace && hf_options & HF_NATIVE) {
        void *found[HF_MAX_NATIVE + 4];
        int n = py.backtrace(found, HF_MAX_NATIVE + 4), from = 0;
        while (from < n && found[from] != caller) {
            from++;
        }
        if (from < n) {
            out->native = (uint16_t)(n - from < HF_MAX_NATIVE ? n - from : HF_MAX_NATIVE);
            for (unsigned i = 0; i < out->native; i++) {
                hash = mix(hash, (uint64_t)(out->address[i] = found[from + (int)i]));
            }
        }
    }
    out->hash = hash;
}

// -- Code records ----------------------------------------------------------------------------------------------------

uint32_t hf_measure_code(const char *code) {
    uint32_t file, name;
    uint8_t width;
    text_of(READ(char *, code, py.at.file), &file, &width);
    text_of(READ(char *, code, py.at.name), &name, &width);
    return (uint32_t)sizeof(struct hf_code_record) + file + name + table_bytes(READ(char *, code, py.at.line_table));
}

void hf_write_code(const char *code, struct hf_code_record *to) {
    const char *table = READ(char *, code, py.at.line_table);
    const char *file = text_of(READ(char *, code, py.at.file), &to->file_bytes, &to->file_width);
    const char *name = text_of(READ(char *, code, py.at.name), &to->name_bytes, &to->name_width);
    to->table_bytes = table_bytes(table);
    to->first_line = READ(uint32_t, code, py.at.first_line);
    to->type = HF_CODE;
    to->bytes = (uint32_t)sizeof *to + to->file_bytes + to->name_bytes + to->table_bytes;
    char *data = (char *)(to + 1);
    memcpy(data, file, to->file_bytes);
    memcpy(data + to->file_bytes, name, to->name_bytes);
    memcpy(data + to->file_bytes + to->name_bytes, table + BYTES_DATA, to->table_bytes);
}
