// Reads the Python frames of the calling thread without the GIL.
//
// CPython releases the GIL around nearly every call that makes or closes a descriptor, so a hook rarely holds it. It
// does not need it: only the thread itself changes its chain of frames, and a frame keeps its code object alive. The
// hook only reads memory, as CPython's faulthandler does. Line numbers are decoded later from the line table.
#include "fdtrace.h"

#include <dlfcn.h>
#include <string.h>

// Offsets in bytes. 3.11 and 3.12: from their headers. 3.13 and 3.14: from _Py_DebugOffsets at the start of _PyRuntime.
struct offsets {
    int16_t tstate_frame; // thread state -> cframe, or -> current frame
    int16_t cframe_frame; // cframe -> current frame, -1: there is no cframe
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
    void *code_type;
    int (*backtrace)(void **, int);
} py;

#define READ(type, base, offset) (*(type *)((const char *)(base) + (offset)))

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
int hf_is_generated(const char *code) {
    uint32_t bytes;
    uint8_t width;
    const char *file = text_of(READ(char *, code, py.at.file), &bytes, &width);
    return bytes && *file == '<' && !(bytes > 7 && !memcmp(file, "<frozen", 7));
}

// Tells code objects apart even if one was freed and another has its address. Python 3.12 and later number them. Before
// that, code that exec ran may have all the addresses of the code before it: then its names and line table are hashed.
uint64_t hf_code_identity(const char *code) {
    const char *table = READ(char *, code, py.at.line_table);
    uint64_t hash = mix((uint64_t)code, (uint64_t)table);
    if (py.at.version >= 0 && READ(uint32_t, code, py.at.version)) {
        return mix(hash, READ(uint32_t, code, py.at.version)) | 1ull << 63;
    }
    const char *file = READ(char *, code, py.at.file), *name = READ(char *, code, py.at.name);
    hash = mix(hash, (uint64_t)name ^ (uint64_t)READ(uint32_t, code, py.at.first_line) << 40);
    hash = mix(hash, (uint64_t)file + READ(uint64_t, file, TEXT_LENGTH));
    if (hf_is_generated(code)) {
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

void hf_capture(struct hf_frames *out, void *caller) {
    out->count = out->cut = 0;
    out->native = 1;
    out->address[0] = caller;
    uint64_t hash = mix(0x5bd1e995, (uint64_t)caller);
    if (py.known && !py.is_finalizing()) {
        const char *thread = py.thread_state();
        const char *frame = NULL;
        if (thread) {
            frame = READ(char *, thread, py.at.tstate_frame);
            if (frame && py.at.cframe_frame >= 0) {
                frame = READ(char *, frame, py.at.cframe_frame);
            }
        }
        for (; frame; frame = READ(char *, frame, py.at.previous)) {
            if (READ(unsigned char, frame, py.at.owner) >= 3) {
                continue; // a shim between C and Python frames
            }
            // Python 3.14 keeps a tag in the low bits of a reference.
            const char *code = (const char *)(READ(uintptr_t, frame, py.at.code) & ~(uintptr_t)3);
            if (!code || READ(void *, code, OBJECT_TYPE) != py.code_type) {
                continue;
            }
            if (out->count == HF_MAX_FRAMES) {
                out->cut = 1;
                break;
            }
            long instr = READ(char *, frame, py.at.instr) - (code + py.at.bytecode);
            // A frame that has not begun to run yet is none for Python either.
            if (py.at.first_traceable >= 0 && READ(unsigned char, frame, py.at.owner) == 0 &&
                instr < 2l * READ(int, code, py.at.first_traceable)) {
                continue;
            }
            out->code[out->count] = code;
            out->instr[out->count++] = (uint32_t)instr;
            hash = mix(hash, hf_code_identity(code) + (uint64_t)instr);
        }
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
