#include "shared/checkpoint/dtype.h"

#include <string.h>

/* Every dtype of the safetensors format, and the further ones of torch. */
static const struct {
    const char *name;
    enum evq_dtype dtype;
    unsigned bits;
} dtypes[] = {
    {"F32", EVQ_DTYPE_F32, 32},
    {"BF16", EVQ_DTYPE_BF16, 16},
    {"F16", EVQ_DTYPE_F16, 16},
    {"I64", EVQ_DTYPE_I64, 64},
    {"BOOL", EVQ_DTYPE_BOOL, 8},
    {"U8", EVQ_DTYPE_U8, 8},
    {"I8", EVQ_DTYPE_I8, 8},
    {"U16", EVQ_DTYPE_U16, 16},
    {"I16", EVQ_DTYPE_I16, 16},
    {"U32", EVQ_DTYPE_U32, 32},
    {"I32", EVQ_DTYPE_I32, 32},
    {"U64", EVQ_DTYPE_U64, 64},
    {"F64", EVQ_DTYPE_F64, 64},
    {"F8_E4M3", EVQ_DTYPE_F8_E4M3, 8},
    {"F8_E5M2", EVQ_DTYPE_F8_E5M2, 8},
    {"C64", EVQ_DTYPE_C64, 64},
    {"C128", EVQ_DTYPE_C128, 128},
    {"F4", EVQ_DTYPE_OTHER, 4},
    {"F6_E2M3", EVQ_DTYPE_OTHER, 6},
    {"F6_E3M2", EVQ_DTYPE_OTHER, 6},
    {"F8_E8M0", EVQ_DTYPE_OTHER, 8},
    {"F8_E4M3FNUZ", EVQ_DTYPE_OTHER, 8},
    {"F8_E5M2FNUZ", EVQ_DTYPE_OTHER, 8},
};

bool evq_dtype_parse(const char *name, enum evq_dtype *ret_dtype, unsigned *ret_bits,
                     const char **ret_name)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *ret_dtype = dtypes[i].dtype;
            *ret_bits = dtypes[i].bits;
            *ret_name = dtypes[i].name;
            return true;
        }
    }
    return false;
}

size_t evq_dtype_bytes(enum evq_dtype dtype)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]) && dtype != EVQ_DTYPE_OTHER; i++) {
        if (dtypes[i].dtype == dtype) {
            return dtypes[i].bits / 8;
        }
    }
    return 0;
}

size_t evq_dtype_stored_bytes(const struct evq_tensor *tensor)
{
    enum evq_dtype dtype;
    const char *name = NULL;
    unsigned bits = 0;

    return evq_dtype_parse(tensor->dtype_name, &dtype, &bits, &name) && bits % 8 == 0 ? bits / 8
                                                                                      : 0;
}

bool evq_dtype_is_float(enum evq_dtype dtype)
{
    return dtype == EVQ_DTYPE_F32 || dtype == EVQ_DTYPE_F16 || dtype == EVQ_DTYPE_BF16 ||
           dtype == EVQ_DTYPE_F64 || dtype == EVQ_DTYPE_F8_E4M3 || dtype == EVQ_DTYPE_F8_E5M2;
}

const char *evq_dtype_name(enum evq_dtype dtype)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]) && dtype != EVQ_DTYPE_OTHER; i++) {
        if (dtypes[i].dtype == dtype) {
            return dtypes[i].name;
        }
    }
    return "OTHER";
}
