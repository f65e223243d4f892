// Redirects the calls of what is loaded already: writes the addresses of the hooks into the GOT slots of every object.
#include "fdtrace.h"

#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

extern const struct hf_hook {
    const char *name;
    void *hook;
} hf_hooks[] __attribute__((visibility("hidden")));

static unsigned long long adds_seen; // objects loaded since the start of the process, when last looked at
static uint64_t looked_ns;

static const struct hf_hook *hook_for(const char *name) {
    for (const struct hf_hook *hook = hf_hooks; hook->name; hook++) {
        if (*name == *hook->name && !strcmp(name, hook->name)) {
            return hook;
        }
    }
    return NULL;
}

static void patch_table(ElfW(Addr) base, const ElfW(Rela) * table, size_t bytes, const ElfW(Sym) * symbols,
                        const char *strings) {
    for (size_t i = 0; i < bytes / sizeof *table; i++) {
        unsigned long type = ELF64_R_TYPE(table[i].r_info);
        // R_X86_64_64: a function in a table of function pointers, as SQLite has one. The program may have changed it.
        if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT && type != R_X86_64_64) {
            continue;
        }
        const ElfW(Sym) *symbol = &symbols[ELF64_R_SYM(table[i].r_info)];
        if (type == R_X86_64_64 && symbol->st_shndx != SHN_UNDEF) {
            continue;
        }
        const struct hf_hook *found = hook_for(strings + symbol->st_name);
        void *real = found ? hf_behind((unsigned)(found - hf_hooks)) : NULL;
        if (!real) {
            continue;
        }
        void *hook = found->hook;
        void **slot = (void **)(base + table[i].r_offset);
        if (*slot == hook || (type == R_X86_64_64 && *slot != real)) {
            continue;
        }
        // RELRO has made most slots read-only. They stay writable: another thread may be patching the same page.
        char *page = (char *)((uintptr_t)slot & ~(uintptr_t)4095);
        if (HF_CALL3(SYS_mprotect, page, 4096, PROT_READ | PROT_WRITE)) {
            continue;
        }
        __atomic_store_n(slot, hook, __ATOMIC_RELEASE);
    }
}

static int patch_object(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    const ElfW(Dyn) *dynamic = NULL;
    int is_self = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_DYNAMIC) {
            dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + part->p_vaddr);
        }
        if (part->p_type == PT_LOAD && (ElfW(Addr))patch_object - info->dlpi_addr - part->p_vaddr < part->p_memsz) {
            is_self = 1;
        }
    }
    if (!dynamic || is_self || strstr(info->dlpi_name, "ld-linux") || strstr(info->dlpi_name, "linux-vdso") ||
        strstr(info->dlpi_name, "/libc.so")) {
        return 0;
    }
    const ElfW(Rela) *plt = NULL, *rela = NULL;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    size_t plt_bytes = 0, rela_bytes = 0;
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        // glibc has relocated these pointers, except in objects that it maps read-only.
        ElfW(Addr) at =
            dynamic->d_un.d_ptr < info->dlpi_addr ? info->dlpi_addr + dynamic->d_un.d_ptr : dynamic->d_un.d_ptr;
        switch (dynamic->d_tag) {
        case DT_JMPREL:
            plt = (const ElfW(Rela) *)at;
            break;
        case DT_PLTRELSZ:
            plt_bytes = dynamic->d_un.d_val;
            break;
        case DT_RELA:
            rela = (const ElfW(Rela) *)at;
            break;
        case DT_RELASZ:
            rela_bytes = dynamic->d_un.d_val;
            break;
        case DT_SYMTAB:
            symbols = (const ElfW(Sym) *)at;
            break;
        case DT_STRTAB:
            strings = (const char *)at;
            break;
        }
    }
    if (!symbols || !strings) {
        return 0;
    }
    if (plt) {
        patch_table(info->dlpi_addr, plt, plt_bytes, symbols, strings);
    }
    if (rela) {
        patch_table(info->dlpi_addr, rela, rela_bytes, symbols, strings);
    }
    return 0;
}

static int read_adds(struct dl_phdr_info *info, size_t size, void *to) {
    (void)size;
    *(unsigned long long *)to = info->dlpi_adds;
    return 1;
}

// Objects that are loaded later are patched when the next descriptor is made, looked for at most every 20 ms.
void hf_patch_loaded(int only_if_new) {
    if (only_if_new) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
        uint64_t now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
        if (now - looked_ns < 20000000u) {
            return;
        }
        looked_ns = now;
    }
    unsigned long long adds = 0;
    dl_iterate_phdr(read_adds, &adds);
    if (only_if_new && adds == adds_seen) {
        return;
    }
    adds_seen = adds;
    dl_iterate_phdr(patch_object, NULL);
}
