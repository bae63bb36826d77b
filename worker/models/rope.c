#include "worker/models/rope.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TWO_PI 6.283185307179586476925

const char *const evq_rope_options[] = {"rope_parameters.rope_type",
                                        "rope_parameters.rope_theta",
                                        "rope_parameters.factor",
                                        "rope_parameters.low_freq_factor",
                                        "rope_parameters.high_freq_factor",
                                        "rope_parameters.original_max_position_embeddings",
                                        "rope_parameters.partial_rotary_factor",
                                        "rope_parameters.attention_factor",
                                        "rope_parameters.beta_fast",
                                        "rope_parameters.beta_slow",
                                        "rope_parameters.short_factor.#",
                                        "rope_parameters.long_factor.#",
                                        NULL};

struct rope {
    struct evq_model_config *config;
    const struct evq_rope_form *form;
    bool older;   // The parameters are in "rope_scaling", the name before "rope_parameters".
    bool grouped; // They are in a group for the type of layer.
    double theta;
    double factor;
    double trained; // Longest sequence of the training before it was stretched.
    double context; // Longest sequence of the model.
    int32_t dim;    // Number of values that rotate.
    float *out;     // dim / 2 values, in radians per position.
    float *far;     // The same for sequences longer than `trained`, if `has_far`.
    bool has_far;
    double scale; // Factor of cosine and sine.
};

/* Writes the path of a parameter to out. An option has the new name, and wins over the file. */
static const char *path(const struct rope *rope, const char *name, char out[80])
{
    // These are our own names, so they fit.
    (void)snprintf(out, 80, "rope_parameters.%s%s%s", rope->grouped ? rope->form->layers : "",
                   rope->grouped ? "." : "", name);
    if (rope->older && !rope->grouped && !evq_model_config_told(rope->config, out)) {
        (void)snprintf(out, 80, "rope_scaling.%s", name);
    }
    return out;
}

static double real(const struct rope *rope, const char *name, double fallback)
{
    char at[80];

    return evq_model_config_real(rope->config, path(rope, name, at), fallback);
}

/* Reads a value that may also stand outside the parameters, as `other`. If both are there, the one
 * outside wins if `first` is set, otherwise the parameter. An option wins over both. */
static double beside(const struct rope *rope, const char *name, const char *other, double fallback,
                     bool first)
{
    char inner[80];
    const bool told = evq_model_config_told(rope->config, path(rope, name, inner));
    const bool outer = evq_model_config_told(rope->config, other) || first;
    const bool here = evq_model_config_has(rope->config, inner);

    if ((outer && !told && evq_model_config_has(rope->config, other)) || !here) {
        return evq_model_config_real(rope->config, other, here ? 1.0 : fallback);
    }
    return real(rope, name, fallback);
}

/* Frequencies are computed in fp32 with the same steps as in Transformers, because an error in the
 * last bits is multiplied by the position. */
static float pair_theta(const struct rope *rope, int32_t pair)
{
    const float power = 2.0f * (float)pair / (float)rope->dim;

    return (float)pow((double)(float)rope->theta, (double)power);
}

static void make_plain(struct rope *rope)
{
    for (int32_t i = 0; i < rope->dim / 2; i++) {
        rope->out[i] = 1.0f / pair_theta(rope, i);
    }
}

static void make_linear(struct rope *rope)
{
    for (int32_t i = 0; i < rope->dim / 2; i++) {
        rope->out[i] = 1.0f / pair_theta(rope, i) / (float)rope->factor;
    }
}

/* Wavelengths above the trained length are stretched, short ones are kept, and those between are
 * interpolated. */
static void make_llama3(struct rope *rope)
{
    const double low = real(rope, "low_freq_factor", (double)NAN);
    const double high = real(rope, "high_freq_factor", (double)NAN);
    const float factor = (float)rope->factor;

    for (int32_t i = 0; i < rope->dim / 2; i++) {
        const float plain = 1.0f / pair_theta(rope, i);
        const float wave = (float)TWO_PI / plain;
        const float blend = ((float)rope->trained / wave - (float)low) / (float)(high - low);
        if (wave > (float)(rope->trained / low)) {
            rope->out[i] = plain / factor;
        } else if (wave < (float)(rope->trained / high)) {
            rope->out[i] = plain;
        } else {
            rope->out[i] = (1.0f - blend) * plain / factor + blend * plain;
        }
    }
}

/* The pair that makes `turns` turns within the trained length. */
static double yarn_pair(const struct rope *rope, double turns)
{
    return rope->dim * log(rope->trained / (turns * TWO_PI)) / (2.0 * log(rope->theta));
}

static double yarn_scale(double factor, double weight)
{
    return factor <= 1.0 ? 1.0 : 0.1 * weight * log(factor) + 1.0;
}

static void make_yarn(struct rope *rope)
{
    char at[80];
    double first = yarn_pair(rope, real(rope, "beta_fast", 32.0));
    double last = yarn_pair(rope, real(rope, "beta_slow", 1.0));
    const double mscale = real(rope, "mscale", 0.0);
    const double mscale_all = real(rope, "mscale_all_dim", 0.0);

    // Transformers looks for this flag outside the groups, where older files never have it.
    const char *truncate =
        rope->form->layers != NULL ? "rope_parameters.truncate" : path(rope, "truncate", at);
    if (evq_model_config_flag(rope->config, truncate,
                              !evq_model_config_null(rope->config, truncate))) {
        first = floor(first);
        last = ceil(last);
    }
    first = fmax(first, 0.0);
    last = fmin(last, rope->dim - 1.0);
    // Transformers also avoids a division by zero this way.
    last = first == last ? last + 0.001 : last;
    for (int32_t i = 0; i < rope->dim / 2; i++) {
        const float ramp = ((float)i - (float)first) / (float)(last - first);
        const float stay = 1.0f - fminf(fmaxf(ramp, 0.0f), 1.0f);
        const float theta = pair_theta(rope, i);
        rope->out[i] = 1.0f / ((float)rope->factor * theta) * (1.0f - stay) + 1.0f / theta * stay;
    }
    const double told = mscale > 0.0 && mscale_all > 0.0 ? yarn_scale(rope->factor, mscale) /
                                                               yarn_scale(rope->factor, mscale_all)
                                                         : yarn_scale(rope->factor, 1.0);
    rope->scale = real(rope, "attention_factor", told);
}

/* Fills `out` with frequencies divided by the factors of a list. */
static void make_divided(struct rope *rope, const char *list, float *out)
{
    char name[40];
    char at[80];

    for (int32_t i = 0; i < rope->dim / 2; i++) {
        (void)snprintf(name, sizeof(name), "%s.%d", list, (int)i);
        out[i] = 1.0f / ((float)real(rope, name, (double)NAN) * pair_theta(rope, i));
    }
    (void)snprintf(name, sizeof(name), "%s.%d", list, (int)(rope->dim / 2));
    if (rope->dim % 2 == 0 && evq_model_config_has(rope->config, path(rope, name, at))) {
        evq_model_config_refuse(rope->config, EVQ_E_INVALID, "%s has more than %d values", list,
                                (int)(rope->dim / 2));
    }
}

static void make_longrope(struct rope *rope)
{
    const double told =
        rope->factor <= 1.0 ? 1.0 : sqrt(1.0 + log(rope->factor) / log(rope->trained));

    make_divided(rope, "short_factor", rope->out);
    make_divided(rope, "long_factor", rope->far);
    rope->has_far = rope->trained < rope->context;
    rope->scale = real(rope, "attention_factor", told);
}

static const struct {
    const char *name;
    void (*make)(struct rope *rope);
    bool stretches; // A missing factor is the ratio of the context to the trained length.
} types[] = {{"default", make_plain, false},   {"linear", make_linear, false},
             {"dynamic", make_plain, false}, // It differs only in sequences beyond the context.
             {"llama3", make_llama3, false},   {"yarn", make_yarn, true},
             {"longrope", make_longrope, true}};

static const char *type_of(const struct rope *rope)
{
    char at[80];
    const char *named = evq_model_config_text(rope->config, path(rope, "rope_type", at), "");

    return named[0] != '\0'
               ? named
               : evq_model_config_text(rope->config, path(rope, "type", at), "default");
}

static size_t find_type(const struct rope *rope)
{
    const char *word = type_of(rope);
    size_t at = 0;
    char shown[64];

    if (rope->form->longrope_names && (strcmp(word, "su") == 0 || strcmp(word, "yarn") == 0)) {
        word = "longrope";
    }
    while (at < sizeof(types) / sizeof(types[0]) && strcmp(types[at].name, word) != 0) {
        at++;
    }
    if (at == sizeof(types) / sizeof(types[0])) {
        evq_error_escape(word, strlen(word), shown, sizeof(shown));
        evq_model_config_refuse(rope->config, EVQ_E_UNSUPPORTED,
                                "rope type '%s' is not handled, expected default, linear, dynamic, "
                                "llama3, yarn or longrope",
                                shown);
        return 0;
    }
    return at;
}

/* If a configuration has the trained length outside the parameters, that value wins. It does not
 * count if the parameters differ by type of layer. Phi's configuration always has it outside. */
static double read_trained(const struct rope *rope)
{
    static const char name[] = "original_max_position_embeddings";
    char at[80];

    if (rope->form->layers != NULL) {
        return real(rope, name, rope->context);
    }
    if (rope->form->trained != 0.0 && !evq_model_config_told(rope->config, path(rope, name, at))) {
        return evq_model_config_real(rope->config, name, rope->form->trained);
    }
    return beside(rope, name, name, rope->context, true);
}

static void read_parameters(struct rope *rope, size_t type)
{
    const struct evq_rope_form *form = rope->form;
    struct evq_model_config *config = rope->config;

    rope->trained = read_trained(rope);
    const double stretched = types[type].stretches ? rope->context / rope->trained : (double)NAN;
    rope->factor = type == 0 ? 1.0 : real(rope, "factor", stretched);
    rope->theta =
        beside(rope, "rope_theta", form->theta_key != NULL ? form->theta_key : "rope_theta",
               form->theta != 0.0 ? form->theta : 10000.0, false);
    if (rope->theta <= 1.0) {
        evq_model_config_refuse(config, EVQ_E_INVALID, "rope_theta is %g, expected more than 1",
                                rope->theta);
    }
}

/* Families with one set of parameters refuse a set for each type of layer, and the other way
 * round. */
static void check_groups(const struct rope *rope)
{
    struct evq_model_config *config = rope->config;
    const bool grouped = evq_model_config_holds(config, "rope_parameters.full_attention") ||
                         evq_model_config_holds(config, "rope_parameters.sliding_attention");

    if (grouped && rope->form->layers == NULL) {
        evq_model_config_refuse(
            config, EVQ_E_UNSUPPORTED,
            "rope_parameters differ by the type of layer, expected one for all");
    }
    if (grouped && rope->older) {
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "it has rope_scaling beside rope_parameters by type of layer, "
                                "expected one of them");
    }
    if (rope->form->layers != NULL && evq_model_config_has(config, "rope_scaling.type") &&
        !evq_model_config_has(config, "rope_scaling.rope_type")) {
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "rope_scaling has type instead of rope_type: Transformers 4 reads "
                                "it and Transformers 5 does not");
    }
    for (size_t i = 0; evq_rope_options[i] != NULL && rope->form->layers != NULL; i++) {
        if (evq_model_config_told(config, evq_rope_options[i])) {
            evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                    "model: %s is one value for all layers, but this family has "
                                    "one for each type of layer",
                                    evq_rope_options[i]);
        }
    }
    if (!grouped && rope->form->layers != NULL &&
        evq_model_config_holds(config, "rope_parameters")) {
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "rope_parameters has no full_attention and sliding_attention, "
                                "expected parameters for each type of layer");
    }
}

void evq_rope_require(struct evq_model_config *config)
{
    if (!evq_model_config_holds(config, "rope_parameters") &&
        !evq_model_config_holds(config, "rope_scaling")) {
        // Without a fallback, a value that is missing is refused.
        (void)evq_model_config_text(config, "rope_parameters.rope_type", NULL);
    }
}

bool evq_rope_has(struct evq_model_config *config, const char *name)
{
    const struct rope rope = {.config = config,
                              .older = evq_model_config_holds(config, "rope_scaling")};
    char at[80];

    return evq_model_config_has(config, path(&rope, name, at));
}

const struct evq_rope *evq_rope_read(struct evq_model_config *config, struct evq_arena *arena,
                                     const struct evq_decoder *decoder,
                                     const struct evq_rope_form *form)
{
    static const struct evq_rope_form usual = {0};
    // If a configuration has both names, Transformers uses the older one unless it is empty.
    struct rope rope = {.config = config,
                        .form = form != NULL ? form : &usual,
                        .older = evq_model_config_holds(config, "rope_scaling") &&
                                 (form == NULL || !form->plain),
                        .context = decoder->context,
                        .scale = 1.0};
    char group[80];

    check_groups(&rope);
    (void)snprintf(group, sizeof(group), "rope_parameters.%s",
                   rope.form->layers != NULL ? rope.form->layers : "");
    rope.grouped = rope.form->layers != NULL && evq_model_config_holds(config, group);
    const double part =
        beside(&rope, "partial_rotary_factor",
               rope.form->part_key != NULL ? rope.form->part_key : "partial_rotary_factor",
               rope.form->part != 0.0 ? rope.form->part : 1.0, false);
    const size_t type = find_type(&rope);
    rope.dim = (int32_t)(decoder->head_dim * part);
    if (part > 1.0 || (part != 1.0 && rope.form->part == 0.0)) {
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "partial_rotary_factor is %g, expected %s", part,
                                rope.form->part == 0.0 ? "1" : "at most 1");
        rope.dim = decoder->head_dim;
    }
    rope.out = evq_arena_array(arena, (size_t)rope.dim + 2, sizeof(*rope.out));
    struct evq_rope *result = evq_arena_alloc(arena, sizeof(*result));
    if (rope.out == NULL || result == NULL) {
        evq_model_config_refuse(config, EVQ_E_NOMEM, "frequencies of rotary positions");
        return NULL;
    }
    rope.far = rope.out + rope.dim / 2 + 1;
    read_parameters(&rope, type);
    types[type].make(&rope);
    *result = (struct evq_rope){.turned = rope.dim,
                                .trained = rope.trained,
                                .neighbours = rope.form->neighbours,
                                .scale = (float)rope.scale,
                                .frequencies = rope.out,
                                .far_frequencies = rope.has_far ? rope.far : NULL,
                                .near = rope.has_far ? (int32_t)rope.trained : 0};
    return result;
}
