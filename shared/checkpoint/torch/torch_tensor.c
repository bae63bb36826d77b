#include <string.h>

#include "shared/checkpoint/dtype.h"
#include "shared/checkpoint/torch/torch.h"

/* An expanded view may be larger than its file, up to this size. */
#define VIEW_BYTES_MAX ((uint64_t)1 << 32)

static const struct {
    const char *storage; // A class of module torch; NULL: none of its own.
    const char *dtype;   // A name of module torch.
    const char *name;    // Its safetensors name.
} types[] = {
    {"FloatStorage", "float32", "F32"},
    {"BFloat16Storage", "bfloat16", "BF16"},
    {"HalfStorage", "float16", "F16"},
    {"DoubleStorage", "float64", "F64"},
    {"LongStorage", "int64", "I64"},
    {"IntStorage", "int32", "I32"},
    {"ShortStorage", "int16", "I16"},
    {"CharStorage", "int8", "I8"},
    {"ByteStorage", "uint8", "U8"},
    {"BoolStorage", "bool", "BOOL"},
    {"ComplexFloatStorage", "complex64", "C64"},
    {"ComplexDoubleStorage", "complex128", "C128"},
    {"UntypedStorage", "byte", "U8"}, // Its size is in bytes.
    {NULL, "uint16", "U16"},
    {NULL, "uint32", "U32"},
    {NULL, "uint64", "U64"},
    {NULL, "float8_e4m3fn", "F8_E4M3"},
    {NULL, "float8_e5m2", "F8_E5M2"},
    {NULL, "float8_e8m0fnu", "F8_E8M0"},
    {NULL, "float8_e4m3fnuz", "F8_E4M3FNUZ"},
    {NULL, "float8_e5m2fnuz", "F8_E5M2FNUZ"},
};

static const char *global_name(const struct evq_pickle_node *node, const char *module)
{
    bool in_module =
        node->kind == EVQ_PICKLE_GLOBAL && strcmp(node->as.global->module, module) == 0;

    return in_module ? node->as.global->name : NULL;
}

/* Returns the function of torch._utils that rebuilds node, or NULL. */
static const char *rebuilder(const struct evq_pickle_node *node)
{
    if (node->kind != EVQ_PICKLE_OBJECT) {
        return NULL;
    }
    const struct evq_pickle_node *callable = node->as.object->callable;
    const char *name = global_name(callable, "torch._utils");
    if (name == NULL) {
        name = global_name(callable, "torch._tensor");
    }
    return name != NULL && strncmp(name, "_rebuild_", strlen("_rebuild_")) == 0 ? name : NULL;
}

bool evq_torch_is_tensor(const struct evq_pickle_node *node)
{
    return rebuilder(node) != NULL;
}

static bool storage_type(const struct evq_pickle_node *node, const char **ret_name,
                         bool *ret_untyped)
{
    if (node->kind != EVQ_PICKLE_GLOBAL || strncmp(node->as.global->module, "torch", 5) != 0) {
        return false;
    }
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (types[i].storage != NULL && strcmp(types[i].storage, node->as.global->name) == 0) {
            *ret_name = types[i].name;
            *ret_untyped = strcmp(types[i].storage, "UntypedStorage") == 0;
            return true;
        }
    }
    return false;
}

bool evq_torch_dtype(const struct evq_pickle_node *node, const char **ret_name)
{
    const char *name = global_name(node, "torch");

    for (size_t i = 0; name != NULL && i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(types[i].dtype, name) == 0) {
            *ret_name = types[i].name;
            return true;
        }
    }
    return false;
}

static enum evq_status shape_error(struct evq_error *err, const char *what)
{
    return evq_error_set(err, EVQ_E_CORRUPT, "%s", what);
}

enum evq_status evq_torch_integers(const struct evq_pickle_node *node, const char *what,
                                   int64_t values[EVQ_TENSOR_RANK_MAX], int32_t *ret_count,
                                   struct evq_error *err)
{
    if (node->kind == EVQ_PICKLE_OBJECT &&
        evq_pickle_is_global(node->as.object->callable, "torch", "Size") &&
        node->as.object->arguments->count == 1) {
        node = node->as.object->arguments->as.items[0];
    }
    if (node->kind != EVQ_PICKLE_TUPLE && node->kind != EVQ_PICKLE_LIST) {
        return evq_error_set(err, EVQ_E_CORRUPT, "its %s is no tuple", what);
    }
    if (node->count > EVQ_TENSOR_RANK_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "%u dimensions, allowed %d", node->count,
                             EVQ_TENSOR_RANK_MAX);
    }
    for (uint32_t i = 0; i < node->count; i++) {
        const struct evq_pickle_node *item = node->as.items[i];
        if (item->kind != EVQ_PICKLE_INT || item->as.integer < 0) {
            return evq_error_set(err, EVQ_E_CORRUPT, "its %s holds what is no integer of 0 or more",
                                 what);
        }
        values[i] = item->as.integer;
    }
    *ret_count = (int32_t)node->count;
    return EVQ_OK;
}

/* (key of the view, first element, elements) is a part of a storage in a legacy stream. */
static bool read_part(const struct evq_pickle_node *node, struct evq_torch_storage *storage)
{
    storage->part_first = 0;
    storage->part_elements = storage->elements;
    if (node->kind == EVQ_PICKLE_NONE) {
        return true;
    }
    if (node->kind != EVQ_PICKLE_TUPLE || node->count != 3 ||
        node->as.items[1]->kind != EVQ_PICKLE_INT || node->as.items[2]->kind != EVQ_PICKLE_INT ||
        node->as.items[1]->as.integer < 0 || node->as.items[2]->as.integer < 0) {
        return false;
    }
    storage->part_first = (uint64_t)node->as.items[1]->as.integer;
    storage->part_elements = (uint64_t)node->as.items[2]->as.integer;
    return storage->part_first <= storage->elements &&
           storage->part_elements <= storage->elements - storage->part_first;
}

enum evq_status evq_torch_storage(const struct evq_pickle_node *node,
                                  struct evq_torch_storage *ret_storage, struct evq_error *err)
{
    static const struct evq_pickle_node whole = {.kind = EVQ_PICKLE_NONE};
    const struct evq_pickle_node *id = node->kind == EVQ_PICKLE_PERSISTENT ? node->as.id : node;
    struct evq_torch_storage storage = {.key = NULL};

    if (node->kind != EVQ_PICKLE_PERSISTENT || id->kind != EVQ_PICKLE_TUPLE ||
        (id->count != 5 && id->count != 6) || !evq_pickle_is_text(id->as.items[0], "storage") ||
        id->as.items[2]->kind != EVQ_PICKLE_TEXT || id->as.items[4]->kind != EVQ_PICKLE_INT ||
        id->as.items[4]->as.integer < 0) {
        return shape_error(err, "its storage is not ('storage', type, key, location, elements)");
    }
    storage.key = id->as.items[2];
    storage.elements = (uint64_t)id->as.items[4]->as.integer;
    if (!read_part(id->count == 6 ? id->as.items[5] : &whole, &storage)) {
        return shape_error(err, "its storage is a part that reaches outside the whole");
    }
    if (!storage_type(id->as.items[1], &storage.dtype_name, &storage.untyped)) {
        const struct evq_pickle_node *type = id->as.items[1];
        return evq_error_set(err, EVQ_E_UNSUPPORTED, "its storage is of type %.160s",
                             type->kind == EVQ_PICKLE_GLOBAL ? type->as.global->name
                                                             : "what is no class");
    }
    *ret_storage = storage;
    return EVQ_OK;
}

/* Checks that a view is inside its storage, with overflow checks at each step, and finds out
 * whether it is in C order. */
static enum evq_status check_view(struct evq_torch_view *view, size_t size, struct evq_error *err)
{
    struct evq_tensor *tensor = &view->tensor;
    uint64_t last = view->first_element;
    uint64_t elements = 1;
    bool empty = false;

    for (int32_t i = 0; i < tensor->rank; i++) {
        empty = empty || tensor->shape[i] == 0;
    }
    tensor->contiguous = true;
    for (int32_t i = tensor->rank - 1; i >= 0 && !empty; i--) {
        uint64_t length = (uint64_t)tensor->shape[i];
        uint64_t stride = (uint64_t)tensor->strides[i];
        uint64_t reach;
        tensor->contiguous = tensor->contiguous && (length == 1 || stride == elements);
        if (__builtin_mul_overflow(length - 1, stride, &reach) ||
            __builtin_add_overflow(last, reach, &last) ||
            __builtin_mul_overflow(elements, length, &elements)) {
            return shape_error(err, "its shape overflows");
        }
    }
    if (empty) {
        tensor->bytes = 0;
        return EVQ_OK;
    }
    if (last >= view->storage.part_elements) {
        return evq_error_set(
            err, EVQ_E_CORRUPT, "it reaches to element %llu of a storage that has %llu",
            (unsigned long long)last, (unsigned long long)view->storage.part_elements);
    }
    if (elements > VIEW_BYTES_MAX / size && elements > view->storage.elements) {
        return evq_error_set(err, EVQ_E_LIMIT, "it is expanded to %llu elements",
                             (unsigned long long)elements);
    }
    if (__builtin_mul_overflow(last - view->first_element + 1, (uint64_t)size, &tensor->bytes)) {
        return shape_error(err, "its shape overflows");
    }
    return EVQ_OK;
}

/* Converts a storage size from bytes to elements of the view's dtype. False: not a whole number. */
static bool count_elements(struct evq_torch_storage *storage, size_t size)
{
    const bool whole = storage->elements % size == 0 && storage->part_first % size == 0 &&
                       storage->part_elements % size == 0;

    storage->elements /= size;
    storage->part_first /= size;
    storage->part_elements /= size;
    return whole;
}

/* torch marks lazy views instead of computing them. The stored values are then the negative or the
 * conjugate of the real values. */
static const char *lazy_mark(const struct evq_pickle_node *arguments, bool with_dtype)
{
    static const char *const marks[] = {"neg", "conj"};
    const uint32_t at = with_dtype ? 7 : 6;

    for (size_t i = 0; at < arguments->count && i < sizeof(marks) / sizeof(marks[0]); i++) {
        const struct evq_pickle_node *mark = evq_pickle_get(arguments->as.items[at], marks[i]);
        if (mark != NULL && !(mark->kind == EVQ_PICKLE_BOOL && mark->as.integer == 0)) {
            return marks[i];
        }
    }
    return NULL;
}

/* Reads (storage, first element, size, stride, requires_grad, hooks, metadata). Version 3 has the
 * dtype before the metadata, and a storage size in bytes. */
static enum evq_status read_view(const struct evq_pickle_node *arguments, bool with_dtype,
                                 struct evq_torch_view *view, struct evq_error *err)
{
    struct evq_pickle_node *const *items = arguments->as.items;
    int32_t strides = 0;
    unsigned bits = 0;

    if (arguments->count < (with_dtype ? 7 : 4)) {
        return shape_error(err, "it has too few arguments");
    }
    const char *mark = lazy_mark(arguments, with_dtype);
    if (mark != NULL) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "it is a lazy view (torch's '%s' bit): save tensor.resolve_%s()", mark,
                             mark);
    }
    enum evq_status status = evq_torch_storage(items[0], &view->storage, err);
    if (status == EVQ_OK) {
        view->tensor.dtype_name = view->storage.dtype_name;
    }
    if (status == EVQ_OK && with_dtype && !evq_torch_dtype(items[6], &view->tensor.dtype_name)) {
        status = evq_error_set(err, EVQ_E_UNSUPPORTED, "its dtype is not known");
    }
    if (status == EVQ_OK && (items[1]->kind != EVQ_PICKLE_INT || items[1]->as.integer < 0)) {
        status = shape_error(err, "its offset is no integer of 0 or more");
    }
    if (status == EVQ_OK) {
        view->first_element = (uint64_t)items[1]->as.integer;
        status = evq_torch_integers(items[2], "shape", view->tensor.shape, &view->tensor.rank, err);
    }
    if (status == EVQ_OK) {
        status = evq_torch_integers(items[3], "stride", view->tensor.strides, &strides, err);
    }
    if (status == EVQ_OK && strides != view->tensor.rank) {
        status = shape_error(err, "its shape and stride have different lengths");
    }
    if (status != EVQ_OK) {
        return status;
    }
    if (!evq_dtype_parse(view->tensor.dtype_name, &view->tensor.dtype, &bits,
                         &view->tensor.dtype_name)) {
        return evq_error_set(err, EVQ_E_BUG, "dtype %s", view->tensor.dtype_name);
    }
    if (view->storage.untyped && with_dtype && !count_elements(&view->storage, bits / 8)) {
        return shape_error(err, "its storage is not a whole number of elements");
    }
    status = check_view(view, bits / 8, err);
    if (status == EVQ_OK) {
        view->first_element += view->storage.part_first; // Both lie inside the storage.
    }
    return status;
}

enum evq_status evq_torch_view(const struct evq_pickle_node *node, struct evq_torch_view *ret_view,
                               struct evq_error *err)
{
    *ret_view = (struct evq_torch_view){.first_element = 0};
    // At most a parameter around a subclass around a tensor.
    for (int depth = 0; depth < 4; depth++) {
        const char *name = rebuilder(node);
        const struct evq_pickle_node *arguments = name == NULL ? NULL : node->as.object->arguments;
        if (name == NULL) {
            return shape_error(err, "it is rebuilt from what is no tensor");
        }
        if (strcmp(name, "_rebuild_tensor_v2") == 0 || strcmp(name, "_rebuild_tensor") == 0) {
            return read_view(arguments, false, ret_view, err);
        }
        if (strcmp(name, "_rebuild_tensor_v3") == 0) {
            return read_view(arguments, true, ret_view, err);
        }
        if ((strcmp(name, "_rebuild_parameter") == 0 ||
             strcmp(name, "_rebuild_parameter_with_state") == 0) &&
            arguments->count > 0) {
            node = arguments->as.items[0];
            continue;
        }
        if (strcmp(name, "_rebuild_from_type_v2") == 0 && arguments->count == 4 &&
            arguments->as.items[2]->kind == EVQ_PICKLE_TUPLE) {
            const struct evq_pickle_node *function = arguments->as.items[0];
            const struct evq_pickle_node *inner = arguments->as.items[2];
            bool third = evq_pickle_is_global(function, "torch._utils", "_rebuild_tensor_v3");
            if (third || evq_pickle_is_global(function, "torch._utils", "_rebuild_tensor_v2")) {
                return read_view(inner, third, ret_view, err);
            }
        }
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "it is rebuilt by %.160s (quantised, sparse or the like)", name);
    }
    return shape_error(err, "it is wrapped too deep");
}
