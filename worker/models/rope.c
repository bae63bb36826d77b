#include "worker/models/rope.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TWO_PI 6.283185307179586476925

struct rope {
    struct evq_model_config *config;
    bool older; // The parameters are in "rope_scaling", the name before "rope_parameters".
    double theta;
    double factor;
    double trained; // Longest sequence of the training before it was stretched.
    int32_t dim;    // Number of values that rotate: head_dim.
    float *out;     // dim / 2 values, in radians per position.
    double scale;   // Factor of cosine and sine.
};

/* Path of a parameter. Options use only the new name and precede both places in the file. */
static const char *path(const struct rope *rope, const char *name, char out[80])
{
    (void)snprintf(out, 80, "rope_parameters.%s", name); // These are our own names, so they fit.
    if (rope->older && !evq_model_config_told(rope->config, out)) {
        (void)snprintf(out, 80, "rope_scaling.%s", name);
    }
    return out;
}

static double real(const struct rope *rope, const char *name, double fallback)
{
    char at[80];

    return evq_model_config_real(rope->config, path(rope, name, at), fallback);
}

/* Reads a value that may also stand beside the parameters; first: that place precedes the
 * parameters. Options precede both. */
static double beside(const struct rope *rope, const char *name, double fallback, bool first)
{
    char inner[80];
    const bool told = evq_model_config_told(rope->config, path(rope, name, inner));
    const bool outer = evq_model_config_told(rope->config, name) || first;

    if (outer && !told) {
        return evq_model_config_real(rope->config, name, real(rope, name, fallback));
    }
    return real(rope, name, evq_model_config_real(rope->config, name, fallback));
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

    const char *truncate = path(rope, "truncate", at);
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

static const struct {
    const char *name;
    void (*make)(struct rope *rope);
} types[] = {
    {"default", make_plain}, {"linear", make_linear}, {"llama3", make_llama3}, {"yarn", make_yarn}};

static const char *type_of(const struct rope *rope)
{
    char at[80];
    const char *named = evq_model_config_text(rope->config, path(rope, "rope_type", at), "");

    return named[0] != '\0'
               ? named
               : evq_model_config_text(rope->config, path(rope, "type", at), "default");
}

static void read_parameters(struct rope *rope, const char *type, int32_t context)
{
    struct evq_model_config *config = rope->config;
    static const char trained[] = "original_max_position_embeddings";
    char at[80];

    // Some configurations have it beside the parameters; that one precedes.
    rope->trained = beside(rope, trained, context, true);
    const double stretched = strcmp(type, "yarn") == 0 ? context / rope->trained : (double)NAN;
    rope->factor = strcmp(type, "default") == 0 ? 1.0 : real(rope, "factor", stretched);
    rope->theta = beside(rope, "rope_theta", 10000.0, false);
    const double part =
        evq_model_config_real(config, path(rope, "partial_rotary_factor", at),
                              evq_model_config_real(config, "partial_rotary_factor", 1.0));
    if (part != 1.0) {
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "partial_rotary_factor is %g, expected 1", part);
    }
    if (rope->theta <= 1.0) {
        evq_model_config_refuse(config, EVQ_E_INVALID, "rope_theta is %g, expected more than 1",
                                rope->theta);
    }
    if (evq_model_config_has(config, "rope_parameters.full_attention.rope_type") ||
        evq_model_config_has(config, "rope_parameters.full_attention.rope_theta")) {
        evq_model_config_refuse(
            config, EVQ_E_UNSUPPORTED,
            "rope_parameters differ by the type of layer, expected one for all");
    }
}

void evq_rope_read(struct evq_model_config *config, struct evq_arena *arena,
                   struct evq_decoder *decoder)
{
    // If a configuration has both names, Transformers uses the older one unless it is empty.
    const bool older = evq_model_config_holds(config, "rope_scaling");
    const size_t pairs = (size_t)decoder->head_dim / 2;
    struct rope rope = {.config = config, .older = older, .dim = decoder->head_dim, .scale = 1.0};
    const char *type = type_of(&rope);
    size_t at = 0;
    char shown[64];

    while (at < sizeof(types) / sizeof(types[0]) && strcmp(types[at].name, type) != 0) {
        at++;
    }
    if (at == sizeof(types) / sizeof(types[0])) {
        evq_error_escape(type, strlen(type), shown, sizeof(shown));
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "rope type '%s' is not handled, expected default, linear, llama3 "
                                "or yarn",
                                shown);
        return;
    }
    rope.out = evq_arena_array(arena, pairs + 1, sizeof(*rope.out));
    if (rope.out == NULL) {
        evq_model_config_refuse(config, EVQ_E_NOMEM, "frequencies of rotary positions");
        return;
    }
    read_parameters(&rope, type, decoder->context);
    types[at].make(&rope);
    decoder->frequencies = rope.out;
    decoder->rope_scale = (float)rope.scale;
}
