#include "shared/checkpoint/torch/pickle_globals.h"

#include <string.h>

/* Modules that run programs, load code, or reach the network or the interpreter. Their submodules
 * count too. */
static const char *const modules[] = {
    "os",
    "posix",
    "nt",
    "subprocess",
    "sys",
    "pty",
    "socket",
    "ctypes",
    "_ctypes",
    "runpy",
    "importlib",
    "pdb",
    "bdb",
    "shutil",
    "code",
    "codeop",
    "marshal",
    "pickle",
    "_pickle",
    "webbrowser",
    "timeit",
    "asyncio",
    "commands",
    "popen2",
    "cffi",
    "pip",
    "distutils",
    "idlelib",
    "lib2to3",
    "ensurepip",
    "cProfile",
    "profile",
    "trace",
    "doctest",
    "http",
    "urllib",
    "requests",
    "ftplib",
    "smtplib",
    "telnetlib",
    "tempfile",
    "imp",
    "zipimport",
    "pkgutil",
    "venv",
    "signal",
    "_posixsubprocess",
};

static const char *const builtins[] = {"eval",     "exec",  "compile",   "__import__", "open",
                                       "execfile", "input", "apply",     "breakpoint", "globals",
                                       "locals",   "vars",  "setattr",   "delattr",    "file",
                                       "reload",   "help",  "memoryview"};

/* Functions elsewhere that take code or commands. */
static const struct {
    const char *module;
    const char *name;
} functions[] = {
    {"torch.hub", "load"},
    {"torch.hub", "download_url_to_file"},
    {"torch.utils.cpp_extension", "load_inline"},
    {"torch.utils.cpp_extension", "load"},
    {"torch._inductor.codecache", "compile_file"},
    {"torch", "load"},
    {"torch.serialization", "load"},
    {"numpy.testing._private.utils", "runstring"},
    {"numpy.f2py.crackfortran", "getlincoef"},
    {"numpy", "load"},
    {"operator", "methodcaller"},
    {"_operator", "methodcaller"},
    {"types", "CodeType"},
    {"types", "FunctionType"},
};

static bool is_builtins(const char *module)
{
    return strcmp(module, "builtins") == 0 || strcmp(module, "__builtin__") == 0;
}

static bool module_denied(const char *module, size_t bytes)
{
    for (size_t i = 0; i < sizeof(modules) / sizeof(modules[0]); i++) {
        if (strlen(modules[i]) == bytes && memcmp(modules[i], module, bytes) == 0) {
            return true;
        }
    }
    return false;
}

static bool builtin_denied(const char *name)
{
    for (size_t i = 0; i < sizeof(builtins) / sizeof(builtins[0]); i++) {
        if (strcmp(builtins[i], name) == 0) {
            return true;
        }
    }
    return false;
}

bool evq_pickle_denied(const char *module, const char *name)
{
    if (module_denied(module, strcspn(module, "."))) {
        return true;
    }
    // A dotted name can reach through a module to its imports: "torch" "os.system".
    const char *dot = strchr(name, '.');
    for (const char *at = name; dot != NULL; at = dot + 1, dot = strchr(at, '.')) {
        if (module_denied(at, (size_t)(dot - at))) {
            return true;
        }
    }
    const char *last = strrchr(name, '.');
    if ((is_builtins(module) || last != NULL) && builtin_denied(last == NULL ? name : last + 1)) {
        return true;
    }
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        if (strcmp(functions[i].module, module) == 0 && strcmp(functions[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

bool evq_pickle_call_denied(const struct evq_pickle_node *callable,
                            const struct evq_pickle_node *arguments)
{
    if (!evq_pickle_is_global(callable, "builtins", "getattr") &&
        !evq_pickle_is_global(callable, "__builtin__", "getattr")) {
        return false;
    }
    // Members of an Enum are written as getattr(Class, "NAME"). Any other getattr reaches objects
    // that are not named.
    if (arguments->kind != EVQ_PICKLE_TUPLE || arguments->count != 2) {
        return true;
    }
    const struct evq_pickle_node *of = arguments->as.items[0];
    const struct evq_pickle_node *name = arguments->as.items[1];
    return of->kind != EVQ_PICKLE_GLOBAL || name->kind != EVQ_PICKLE_TEXT || name->count == 0 ||
           name->as.text[0] == '_' || memchr(name->as.text, '.', name->count) != NULL;
}

bool evq_pickle_is_global(const struct evq_pickle_node *value, const char *module, const char *name)
{
    return value->kind == EVQ_PICKLE_GLOBAL && strcmp(value->as.global->name, name) == 0 &&
           strcmp(value->as.global->module, module) == 0;
}
