#include "columns.h"

#include <stdlib.h>

int hf_array_room(hf_array *a, size_t extra) {
    if (extra <= a->cap - a->len) {
        return 1;
    }
    if (extra > (SIZE_MAX >> 2) || a->len > (SIZE_MAX >> 2)) {
        return 0;
    }
    size_t want = a->len + extra;
    size_t cap = a->cap + a->cap / 2; /* grows by half: at most a third of it is ever unused */
    if (cap < want) {
        cap = want;
    }
    if (cap < 64) {
        cap = 64;
    }
    uint8_t *data = realloc(a->data, cap);
    if (!data) {
        return 0;
    }
    a->data = data;
    a->cap = cap;
    return 1;
}

void hf_array_free(hf_array *a) {
    free(a->data);
    *a = (hf_array){NULL, 0, 0};
}

void hf_field_free(hf_field *f) {
    free(f->key);
    free(f->fill);
    free(f->fill_ends);
    *f = (hf_field){0};
}

void hf_column_free(hf_column *c) {
    hf_array_free(&c->values);
    hf_array_free(&c->ends);
    hf_array_free(&c->steps);
    hf_array_free(&c->rows);
}
