// Looks like CPython VERSION from within: two Python frames with a shim between them, at the offsets that it announces.
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

struct text {
    uint64_t references;
    void *type;
    uint64_t length, hash;
    uint32_t state, padding; // interned: 2 bits, kind: 3, compact: 1, ascii: 1
    char data[8];
};
struct bytes {
    uint64_t references;
    void *type;
    uint64_t size, hash;
    unsigned char data[8];
};
char PyCode_Type[8];
struct code {
    uint64_t references;
    void *type;
    int first_line, numbers[5];
    unsigned version;
    struct text *file, *name;
    struct bytes *line_table;
    unsigned char bytecode[16];
};
struct frame {
    uintptr_t code;
    struct frame *previous;
    unsigned char *instruction;
    char owner;
};

static struct text file = {1, NULL, 7, 0, 1 | 1 << 2 | 1 << 5 | 1 << 6, 0, "fake.py"};
static struct text inner_name = {1, NULL, 5, 0, 2 | 1 << 2 | 1 << 5 | 1 << 6, 0, "inner"};
static struct text outer_name = {1, NULL, 5, 0, 3 | 1 << 2 | 1 << 5 | 1 << 6, 0, "outer"};
static struct bytes table = {1, NULL, 4, 0, {0xe8, 2, 0xe8, 8}}; // two instructions: one line further, and four more
static struct code inner = {1, PyCode_Type, 10, {0}, 7, &file, &inner_name, &table, {0}};
static struct code outer = {1, PyCode_Type, 20, {0}, 8, &file, &outer_name, &table, {0}};
static struct frame last, shim, first;
static struct {
    uint64_t words[3];
    struct frame *current;
} thread;

#define FRAME(field) offsetof(struct frame, field)
#define CODE(field) offsetof(struct code, field)
uint64_t _PyRuntime[3 + 3 + 16 + 9 + 8 + 11] = {
    0x7970677562656478, // "xdebugpy"
    VERSION,
    FREE_THREADED,
    [3 + 3 + 16] = sizeof thread,
    0,
    0,
    0,
    offsetof(typeof(thread), current),
    [3 + 3 + 16 + 9] = sizeof first,
    FRAME(previous),
    FRAME(code),
    FRAME(instruction),
    0,
    FRAME(owner),
    [3 + 3 + 16 + 9 + 8] = sizeof inner,
    CODE(file),
    0,
    CODE(name),
    CODE(line_table),
    CODE(first_line),
    0,
    0,
    0,
    CODE(bytecode),
};
unsigned long Py_Version = VERSION;
int Py_IsFinalizing(void) { return 0; }
void *PyGILState_GetThisThreadState(void) { return &thread; }

int main(void) {
    first = (struct frame){(uintptr_t)&outer | 1, NULL, outer.bytecode, 0}; // a borrowed reference has a tag
    shim = (struct frame){1, &first, NULL, 3};
    last = (struct frame){(uintptr_t)&inner, &shim, inner.bytecode + 2, 1};
    thread.current = &last;
    return close(open("/dev/null", O_RDONLY));
}
