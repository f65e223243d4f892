// Redirects the calls of what is loaded already: writes the addresses of the hooks into the GOT slots of every object.
// What is loaded later finds the hooks by itself, because libc's symbols name them: nothing looks for new objects.
//
// dl_iterate_phdr takes the loader's lock, which a fork leaves locked in the child if another thread holds it. So it is
// called only here, never in a hook, and no fork begins meanwhile.
#include "fdtrace.h"

#include <elf.h>
#include <link.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

extern const struct hf_hook {
    const char *name;
    void *hook;
} hf_hooks[] __attribute__((visibility("hidden")));

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

// Returns the number of dynamic symbols: the last chain of the hash table ends with the last symbol.
static uint32_t count_symbols(const uint32_t *hash) {
    uint32_t buckets = hash[0], first = hash[1], last = 0;
    const uint32_t *bucket = hash + 4 + 2 * (size_t)hash[2], *chain = bucket + buckets;
    for (uint32_t i = 0; i < buckets; i++) {
        last = bucket[i] > last ? bucket[i] : last;
    }
    if (last < first) {
        return first;
    }
    while (!(chain[last - first] & 1)) {
        last++;
    }
    return last + 1;
}

// Lets a symbol of libc lead to its hook, for what the loader binds from now on.
static void redirect_symbols(ElfW(Addr) base, ElfW(Sym) * symbols, uint32_t count, const char *strings) {
    for (uint32_t i = 1; i < count; i++) {
        ElfW(Sym) *symbol = &symbols[i];
        if (symbol->st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol->st_info) != STT_FUNC) {
            continue;
        }
        const struct hf_hook *found = hook_for(strings + symbol->st_name);
        if (!found || (void *)(base + symbol->st_value) != hf_behind((unsigned)(found - hf_hooks))) {
            continue;
        }
        uintptr_t page = (uintptr_t)symbol & ~(uintptr_t)4095, end = (uintptr_t)(symbol + 1);
        if (HF_CALL3(SYS_mprotect, page, end - page, PROT_READ | PROT_WRITE)) {
            continue;
        }
        __atomic_store_n(&symbol->st_value, (ElfW(Addr))found->hook - base, __ATOMIC_RELEASE);
        HF_CALL3(SYS_mprotect, page, end - page, PROT_READ);
    }
}

static int is_libc(const char *name) {
    return strstr(name, "/libc.so") || strstr(name, "/libpthread") || strstr(name, "/librt") ||
           strstr(name, "/libutil");
}

static int patch_object(struct dl_phdr_info *info, size_t size, void *only_libc) {
    (void)size;
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
        (only_libc ? !is_libc(info->dlpi_name) : !!strstr(info->dlpi_name, "/libc.so"))) {
        return 0;
    }
    const ElfW(Rela) *plt = NULL, *rela = NULL;
    ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *hash = NULL;
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
            symbols = (ElfW(Sym) *)at;
            break;
        case DT_GNU_HASH:
            hash = (const uint32_t *)at;
            break;
        case DT_STRTAB:
            strings = (const char *)at;
            break;
        }
    }
    if (!symbols || !strings) {
        return 0;
    }
    if (only_libc) {
        if (hash) {
            redirect_symbols(info->dlpi_addr, symbols, count_symbols(hash), strings);
        }
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

static uint32_t forks, patching; // threads that fork now, and whether one patches

static void pause_ms(int milliseconds) {
    struct timespec pause = {0, milliseconds * 1000000l};
    HF_CALL2(SYS_nanosleep, &pause, 0);
}

// A fork waits for a thread that patches, which takes up to a tenth of a second, and that one for a fork. Neither waits
// for ever: a thread may be stopped.
#define WAIT_TRIES 1000

void hf_fork_begins(void) {
    for (int tries = 0;; tries++) {
        __atomic_fetch_add(&forks, 1, __ATOMIC_SEQ_CST);
        if (!__atomic_load_n(&patching, __ATOMIC_SEQ_CST) || tries == WAIT_TRIES) {
            return;
        }
        __atomic_fetch_sub(&forks, 1, __ATOMIC_SEQ_CST);
        pause_ms(1);
    }
}

void hf_fork_ended(int in_child) {
    if (in_child) {
        __atomic_store_n(&forks, 0, __ATOMIC_SEQ_CST); // the threads that forked, too, are not in this process
        __atomic_store_n(&patching, 0, __ATOMIC_SEQ_CST);
    } else {
        __atomic_fetch_sub(&forks, 1, __ATOMIC_SEQ_CST);
    }
}

void hf_patch_loaded(void) {
    sigset_t all, before; // a handler that forks here would wait for itself
    memset(&all, 0xff, sizeof all);
    HF_CALL4(SYS_rt_sigprocmask, SIG_BLOCK, &all, &before, 8);
    for (int tries = 0;; tries++) {
        __atomic_store_n(&patching, 1, __ATOMIC_SEQ_CST);
        if (!__atomic_load_n(&forks, __ATOMIC_SEQ_CST) || tries == WAIT_TRIES) {
            break;
        }
        __atomic_store_n(&patching, 0, __ATOMIC_SEQ_CST);
        pause_ms(1);
    }
    // Symbols first: what another thread loads meanwhile is bound to the hooks or still in the list.
    dl_iterate_phdr(patch_object, (void *)1);
    dl_iterate_phdr(patch_object, NULL);
    __atomic_store_n(&patching, 0, __ATOMIC_SEQ_CST);
    HF_CALL4(SYS_rt_sigprocmask, SIG_SETMASK, &before, 0, 8);
}
