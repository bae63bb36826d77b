/* Every family of language models against log-probabilities that Transformers gave in float64
 * (tests/data/make_models.py), and what is refused, by name. */
#include "model_fixture.h"

static const char *const families[] = {
    "arcee", "cohere",   "cohere2", "exaone4", "gemma", "gemma2",     "gemma3",  "glm4",
    "gpt2",  "gpt_neox", "gpt_oss", "granite", "llama", "llama_yarn", "mistral", "mixtral",
    "olmo3", "olmoe",    "phi3",    "qwen2",   "qwen3", "qwen3_moe",  "smollm3", "starcoder2"};
enum { FAMILIES = sizeof(families) / sizeof(families[0]) };

static void read_expected(const char *name, struct text *text)
{
    char path[256];
    char *line = NULL;
    size_t capacity = 0;
    int32_t scores = 0;

    *text = (struct text){0};
    (void)snprintf(path, sizeof(path), EVQ_TEST_DATA "/models/%s/expected.txt", name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (getline(&line, &capacity, file) > 0) {
        const bool is_tokens = strncmp(line, "tokens ", 7) == 0;
        int32_t tokens[TOKENS_MAX];
        int32_t count = 0;
        char *end = NULL;
        for (char *at = strchr(line, ' ');; at = end) {
            const double value = strtod(at, &end);
            if (end == at) {
                break;
            }
            if (is_tokens) {
                tokens[count++] = (int32_t)value;
            } else {
                text->expected[scores++] = value;
            }
        }
        if (is_tokens) {
            text_add(text, tokens, count);
        }
    }
    free(line);
    (void)fclose(file);
    assert_int_equal(scores, text->batch.scores);
}

static void models_agree_with_transformers_in_float64(void **state)
{
    (void)state;
    for (size_t i = 0; i < FAMILIES; i++) {
        struct scored scored;
        struct text text;
        struct evq_error err = {0};
        double mean = 0;
        double worst = 0;
        read_expected(families[i], &text);
        assert_status_err(
            scored_build(&scored, EVQ_TEST_DATA "/models", families[i], NULL, 0, 0, &err), EVQ_OK,
            &err);
        assert_int_equal(scored.model->context, 24);
        assert_int_equal(scored.model->outputs, 37);
        assert_status_err(scored_load(&scored, &err), EVQ_OK, &err);
        assert_status_err(evq_backend_cpu.exec(scored.state, &text.batch, scored.results, &err),
                          EVQ_OK, &err);
        for (int32_t k = 0; k < text.batch.scores; k++) {
            const double off = -scored.results[k].loss - text.expected[k];
            mean += off / text.batch.scores;
            worst = fabs(off) > worst || isnan(off) ? fabs(off) : worst;
        }
        if (!(fabs(mean) <= 1e-5) || !(worst <= 1e-4)) {
            fail_msg("%s: mean off by %g, one by %g", families[i], mean, worst);
        }
        scored_close(&scored);
    }
}

static const struct edit edits[] = {
    {"llama",
     "LlamaForCausalLM",
     "MambaForCausalLM",
     EVQ_E_UNSUPPORTED,
     {"MambaForCausalLM", "command or persistent"}},
    {"llama",
     "LlamaForCausalLM",
     "LlamaForSequenceClassification",
     EVQ_E_UNSUPPORTED,
     {"LlamaForSequenceClassification"}},
    {"llama",
     "\"model_type\": \"llama\"",
     "\"model_type\": \"mistral\"",
     EVQ_E_INVALID,
     {"LlamaForCausalLM", "its model_type is mistral", "family"}},
    {"llama", "\"model_type\": \"llama\"", "\"model_type\": null", EVQ_OK, {""}},
    {"llama", "\"llama3\"", "\"dynamic\"", EVQ_OK, {""}},
    {"llama", "\"llama3\"", "\"axial\"", EVQ_E_UNSUPPORTED, {"'axial'", "yarn"}},
    {"llama", "\"llama3\"", "\"longrope\"", EVQ_E_INVALID, {"rope_parameters.short_factor.0"}},
    {"llama", "\"llama3\"", "3", EVQ_E_INVALID, {"rope_parameters.rope_type", "text"}},
    {"llama", "\"factor\": 8.0,", "", EVQ_E_INVALID, {"rope_parameters.factor"}},
    {"llama", "\"factor\": 8.0", "\"factor\": -8.0", EVQ_E_INVALID, {"'-8.0'", "above zero"}},
    {"llama", "\"factor\": 8.0", "\"factor\": Infinity", EVQ_E_INVALID, {"'Infinity'", "finite"}},
    {"llama", "\"rope_theta\": 500.0", "\"rope_theta\": NaN", EVQ_E_INVALID, {"'NaN'"}},
    {"llama", "\"rope_theta\": 500.0", "\"rope_theta\": 1", EVQ_E_INVALID, {"rope_theta is 1"}},
    {"llama", "\"silu\"", "\"softplus\"", EVQ_E_UNSUPPORTED, {"'softplus'", "silu"}},
    {"llama", "\"silu\"", "null", EVQ_OK, {""}},
    {"llama",
     "\"hidden_size\": 16",
     "\"hidden_size\": 20",
     EVQ_E_INVALID,
     {"model.embed_tokens.weight", "model.safetensors", "[37, 20]"}},
    {"llama",
     "\"rope_theta\": 500.0",
     "\"rope_theta\": [500.0]",
     EVQ_E_INVALID,
     {"rope_parameters.rope_theta is '[...]'"}},
    {"llama", "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": {}", EVQ_E_INVALID, {"'{...}'"}},
    {"llama", "\"hidden_size\": 16", "\"hidden_size\": 16.0", EVQ_OK, {""}},
    {"llama",
     "\"hidden_size\": 16",
     "\"hidden_size\": 16.5",
     EVQ_E_INVALID,
     {"hidden_size", "'16.5'", "whole number"}},
    {"llama", "\"hidden_size\": 16", "\"hidden_size\": \"16\"", EVQ_E_INVALID, {"whole number"}},
    {"llama", "\"hidden_size\": 16", "\"hidden_size\": 1e99", EVQ_E_INVALID, {"'1e99'"}},
    {"llama", "\"hidden_size\": 16,", "", EVQ_E_INVALID, {"hidden_size is not known"}},
    {"llama",
     "\"intermediate_size\": 24",
     "\"intermediate_size\": 25",
     EVQ_E_INVALID,
     {"mlp.gate_proj.weight", "[24, 16]", "[25, 16]"}},
    {"llama",
     "\"num_hidden_layers\": 2",
     "\"num_hidden_layers\": 3",
     EVQ_E_INVALID,
     {"'model.safetensors': tensor 'model.layers.2.input_layernorm.weight' is missing", "[16]"}},
    {"llama",
     "\"num_hidden_layers\": 2",
     "\"num_hidden_layers\": 1",
     EVQ_E_INVALID,
     {"model.layers.1.", "has no place"}},
    {"llama",
     "\"num_hidden_layers\": 2",
     "\"num_hidden_layers\": 2000000000",
     EVQ_E_INVALID,
     {"num_hidden_layers", "10000"}},
    {"llama",
     "\"num_key_value_heads\": 2",
     "\"num_key_value_heads\": 3",
     EVQ_E_INVALID,
     {"config.json of ", "4 attention heads", "3 key-value"}},
    {"llama",
     "\"num_key_value_heads\": 2",
     "\"num_key_value_heads\": null",
     EVQ_E_INVALID,
     {"k_proj.weight", "[8, 16]", "[16, 16]"}},
    {"llama",
     "\"attention_bias\": false",
     "\"attention_bias\": true",
     EVQ_E_INVALID,
     {"q_proj.bias", "missing", "expected one of shape [16]"}},
    {"llama",
     "\"attention_bias\": false",
     "\"attention_bias\": \"yes\"",
     EVQ_E_INVALID,
     {"attention_bias", "true or false"}},
    {"llama", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", EVQ_OK, {""}},
    {"llama", "\"head_dim\": 4", "\"head_dim\": null", EVQ_OK, {""}},
    {"llama", "\"head_dim\": 4", "\"head_dim\": 3", EVQ_E_UNSUPPORTED, {"3 wide", "even"}},
    {"llama", "\"head_dim\": 4", "\"head_dim\": 60000", EVQ_E_INVALID, {"q_proj.weight"}},
    {"llama",
     "\"use_cache\": true",
     "\"quantization_config\": {\"quant_method\": \"awq\"}",
     EVQ_E_UNSUPPORTED,
     {"quantised"}},
    {"llama",
     "\"use_cache\": true",
     "\"partial_rotary_factor\": 0.5",
     EVQ_E_UNSUPPORTED,
     {"partial_rotary_factor"}},
    {"llama",
     "\"use_cache\": true",
     "\"rope_parameters\": {\"full_attention\": {\"rope_type\": 1}}",
     EVQ_E_UNSUPPORTED,
     {"differ by the type of layer"}},
    {"llama", // Beside rope_parameters: Transformers takes rope_scaling.
     "\"use_cache\": true",
     "\"rope_scaling\": {\"type\": \"axial\", \"factor\": 2.0}",
     EVQ_E_UNSUPPORTED,
     {"'axial'"}},
    {"llama", "\"use_cache\": true", "\"rope_scaling\": {}", EVQ_OK, {""}},
    {"llama",
     "\"use_cache\": true",
     "\"is_causal\": false",
     EVQ_E_UNSUPPORTED,
     {"is_causal is false"}},
    {"llama", "\"vocab_size\": 37", "\"vocab_size\": 0", EVQ_E_INVALID, {"vocab_size", "'0'"}},
    {"llama",
     "\"vocab_size\": 37",
     "\"vocab_size\": 37, \"vocab_size\": 38",
     EVQ_E_INVALID,
     {"[37, 16]", "[38, 16]"}}, // Of two, the last, as Python has it.
    {"llama",
     "\"max_position_embeddings\": 24",
     "\"max_position_embeddings\": 9",
     EVQ_E_INVALID,
     {"19 tokens", "at most 9"}},
    {"qwen3", "\"head_dim\": 6,", "", EVQ_E_INVALID, {"q_proj.weight", "[512, 16]"}}, // 128.
    {"qwen3", "\"use_sliding_window\": false", "\"use_sliding_window\": true", EVQ_OK, {""}},
    {"qwen3", "\"full_attention\"", "\"chunked_attention\"", EVQ_OK, {""}}, // No window, no use.
    {"qwen3", "\"sliding_window\": null", "\"sliding_window\": 4096", EVQ_OK, {""}},
    {"mistral",
     "\"sliding_window\": 5",
     "\"sliding_window\": -5",
     EVQ_E_INVALID,
     {"sliding_window", "'-5'"}},
    {"mistral",
     "\"sliding_window\": 5",
     "\"sliding_window\": 5, \"layer_types\": [\"chunked_attention\"]",
     EVQ_E_UNSUPPORTED,
     {"chunked_attention", "sliding_attention"}},
    {"mistral", "\"MistralForCausalLM\"", "\"MinistralForCausalLM\"", EVQ_OK, {""}},
    {"gpt2",
     "\"n_head\": 4",
     "\"n_head\": 3",
     EVQ_E_INVALID,
     {"config.json of ", "16 values", "3 heads"}},
    {"gpt2",
     "\"n_positions\": 24",
     "\"n_positions\": 30",
     EVQ_E_INVALID,
     {"wpe.weight", "[24, 16]", "[30, 16]"}},
    {"gpt2",
     "\"tie_word_embeddings\": true",
     "\"tie_word_embeddings\": false",
     EVQ_E_INVALID,
     {"lm_head.weight", "expected one of shape [37, 16]"}},
    {"gpt2", "\"gelu_new\"", "\"gelu\"", EVQ_OK, {""}},
    {"gpt2", "\"use_cache\": true", "\"block_size\": 8", EVQ_OK, {""}}, // n_positions says it.
    {"gpt2",
     "\"add_cross_attention\": false",
     "\"add_cross_attention\": true",
     EVQ_E_UNSUPPORTED,
     {"add_cross_attention"}},
    {"gemma",
     "\"use_bidirectional_attention\": null",
     "\"use_bidirectional_attention\": true",
     EVQ_E_UNSUPPORTED,
     {"use_bidirectional_attention"}},
    {"gemma", "\"use_cache\": true", "\"hidden_activation\": \"softplus\"", EVQ_OK, {""}},
    {"gemma", "\"hidden_act\": \"gelu_py", "\"hidden_activation\": \"py", EVQ_OK, {""}},
    {"gemma", "{", "[", EVQ_E_CORRUPT, {"config.json"}},
    {"gemma", "{", "{\"a\": nan, ", EVQ_E_CORRUPT, {"config.json", "JSON byte"}},
    {"gemma", "{", "{\"a\": \"\xff\", ", EVQ_E_CORRUPT, {"config.json", "UTF-8"}},
    {"gemma", "{", "", EVQ_E_CORRUPT, {"config.json"}},
    {"gemma", "{", "{\"task_specific_params\": [[[[[[[[1]]]]]]]], ", EVQ_OK, {""}},
    {"llama",
     "\"use_cache\": true",
     "\"logits_scaling\": 8.0",
     EVQ_E_UNSUPPORTED,
     {"logits_scaling is 8.0", "llama family does not know"}},
    {"llama", "\"use_cache\": true", "\"logits_scaling\": 1.0", EVQ_OK, {""}},
    {"llama", "\"use_cache\": true", "\"logits_scaling\": null", EVQ_OK, {""}},
    {"llama",
     "\"use_cache\": true",
     "\"no_rope_layers\": [1, 0]",
     EVQ_E_UNSUPPORTED,
     {"no_rope_layers is [...]"}},
    {"llama", "\"use_cache\": true", "\"no_rope_layers\": []", EVQ_OK, {""}},
    {"llama", "\"use_cache\": true", "\"sliding_window\": 9", EVQ_E_UNSUPPORTED, {"sliding_w"}},
    {"llama", "\"use_cache\": true", "\"use_sliding_window\": false", EVQ_OK, {""}},
    {"llama",
     "\"use_cache\": true",
     "\"use_sliding_window\": true",
     EVQ_E_UNSUPPORTED,
     {"use_sliding_window is true"}},
    {"llama",
     "\"factor\": 8.0",
     "\"factor\": 8.0, \"mrope_section\": [1, 2]",
     EVQ_E_UNSUPPORTED,
     {"rope_parameters.mrope_section is [...]"}},
    {"llama",
     "\"use_cache\": true",
     "\"hidden_dropout\": 0.1, \"mask_token_id\": 3, \"transformers.js_config\": {\"d\": 1}",
     EVQ_OK,
     {""}},
    {"gpt2", "\"use_cache\": true", "\"multi_query\": true", EVQ_E_UNSUPPORTED, {"gpt2 family"}},
    {"phi3", "\"rope_type\": \"longrope\"", "\"rope_type\": \"su\"", EVQ_OK, {""}},
    {"phi3", "1.0,\n      1.25", "1.0", EVQ_E_INVALID, {"short_factor.1 is not known"}},
    {"phi3", "1.25", "-2", EVQ_E_INVALID, {"short_factor.1", "'-2'"}},
    {"phi3",
     "\"partial_rotary_factor\": 1.0",
     "\"partial_rotary_factor\": 1.5",
     EVQ_E_UNSUPPORTED,
     {"partial_rotary_factor is 1.5", "at most 1"}},
    {"phi3",
     "\"partial_rotary_factor\": 1.0",
     "\"partial_rotary_factor\": 0.25",
     EVQ_E_UNSUPPORTED,
     {"1 of their values rotate", "even"}},
    {"gemma3", "\"full_attention\": {", "\"full\": {", EVQ_E_UNSUPPORTED, {"rope_parameters.full"}},
    {"gemma3",
     "\"use_bidirectional_attention\": false",
     "\"use_bidirectional_attention\": true",
     EVQ_E_UNSUPPORTED,
     {"use_bidirectional_attention is true"}},
    {"gemma2",
     "\"attn_logit_softcapping\": 2.0",
     "\"attn_logit_softcapping\": -2.0",
     EVQ_E_INVALID,
     {"attn_logit_softcapping", "'-2.0'"}},
    {"cohere", "\"use_qk_norm\": true", "\"use_qk_norm\": false", EVQ_E_INVALID, {"no place"}},
    {"gpt_oss",
     "\"intermediate_size\": 24",
     "\"intermediate_size\": 25",
     EVQ_E_INVALID,
     {"[3, 16, 48]", "[3, 16, 50]"}},
    {"gpt_oss", "\"rope_parameters\": {", "\"rope\": {", EVQ_E_INVALID, {"no rope_parameters"}},
    {"gpt_oss",
     "\"swiglu_limit\": 7.0",
     "\"swiglu_limit\": 0",
     EVQ_E_INVALID,
     {"swiglu_limit", "'0'"}},
    {"olmoe", "\"clip_qkv\": null", "\"clip_qkv\": 8.0", EVQ_E_UNSUPPORTED, {"clip_qkv"}},
    {"mixtral",
     "\"num_experts_per_tok\": 2",
     "\"num_experts_per_tok\": 4",
     EVQ_E_INVALID,
     {"4 experts", "of 3"}},
    {"mixtral",
     "\"num_local_experts\": 3",
     "\"num_local_experts\": 4",
     EVQ_E_INVALID,
     {"experts.3.w1.weight"}},
    {"qwen3_moe",
     "\"mlp_only_layers\": [",
     "\"mlp_only_layers\": [2, ",
     EVQ_E_INVALID,
     {"mlp_only_layers.0", "'2'"}},
    {"smollm3", "\"no_rope_layers\": [", "\"no_rope_layers\": [7, ", EVQ_E_INVALID, {"'7'"}},
    {"gpt_neox",
     "\"use_cache\": true",
     "\"num_key_value_heads\": 2",
     EVQ_E_UNSUPPORTED,
     {"num_key_value_heads is 2", "gpt_neox family"}},
};

static void models_refuse_what_they_are_not(void **state)
{
    size_t refused = 0;
    const struct fixture_folder *folder = *state;

    for (size_t i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
        const struct edit *edit = &edits[i];
        struct scored scored;
        struct evq_error err = {0};
        copy_model(folder, edit);
        const enum evq_status status = scored_build(&scored, folder->path, ".", NULL, 0, 19, &err);
        scored_close(&scored);
        if (status != edit->status) {
            fail_msg("%s with %s: %s: %s", edit->family, edit->to, evq_status_name(status),
                     err.message);
        }
        for (size_t k = 0; k < 3 && edit->words[k] != NULL; k++) {
            if (strstr(err.message, edit->words[k]) == NULL) {
                fail_msg("%s with %s: \"%s\" lacks \"%s\"", edit->family, edit->to, err.message,
                         edit->words[k]);
            }
        }
        refused += status != EVQ_OK;
    }
    print_message("%zu configurations of models refused\n", refused);
}

static void models_options_go_before_the_configuration(void **state)
{
    const struct fixture_folder *folder = *state;
    const struct edit same = {.family = "llama", .from = "{", .to = "{"};
    char elsewhere[128];
    static const struct {
        struct evq_pair options[2];
        size_t count;
        const char *words; // "": accepted.
    } cases[] = {
        {{{"hidden_size", "20"}}, 1, "[37, 20]"},
        {{{"rope_theta", "7"}}, 1, ""},
        {{{"rope_theta", "1"}}, 1, "rope_theta is 1"}, // The file has rope_parameters.rope_theta.
        {{{"rope_theta", "1"}, {"rope_parameters.rope_theta", "7"}}, 2, ""},
        {{{"family", "llama"}}, 1, ""},
        {{{"family", "mistral"}}, 1, "of type llama, not mistral: leave out"},
        {{{"family", "gpt2"}}, 1, "of type llama, not gpt2: leave out"},
        {{{"family", "mlp"}}, 1, "reads samples"},
        {{{"family", "gpt5"}}, 1, "family 'gpt5'"},
        {{{"prefix", "other."}}, 1, "tensor 'other."},
        {{{"n_head", "4"}}, 1, "'n_head' is not known"},
        {{{"config_path", "/nonexistent/config.json"}}, 1, "/nonexistent/config.json"},
        {{{"hidden_size", "sixteen"}}, 1, "'sixteen'"},
    };

    copy_model(folder, &same);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct scored scored;
        struct evq_error err = {0};
        const enum evq_status status =
            scored_build(&scored, folder->path, ".", cases[i].options, cases[i].count, 0, &err);
        scored_close(&scored);
        if ((status == EVQ_OK) != (cases[i].words[0] == '\0') ||
            strstr(err.message, cases[i].words) == NULL) {
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, err.message, cases[i].words);
        }
    }
    struct scored scored;
    struct evq_error err = {0};
    (void)snprintf(elsewhere, sizeof(elsewhere), "%s/config.json", folder->path);
    const struct evq_pair alone[] = {{"config_path", elsewhere}};
    fixture_folder_mkdir(folder, "alone");
    size_t bytes = 0;
    uint8_t *weights = fixture_file_load(EVQ_TEST_DATA "/models/llama/model.safetensors", &bytes);
    fixture_folder_write(folder, "alone/m.safetensors", weights, bytes);
    free(weights);
    assert_status(scored_build(&scored, folder->path, "alone/m.safetensors", NULL, 0, 0, &err),
                  EVQ_E_INVALID);
    assert_holds(err.message, "no config.json");
    scored_close(&scored);
    assert_status_err(scored_build(&scored, folder->path, "alone/m.safetensors", alone, 1, 0, &err),
                      EVQ_OK, &err);
    scored_close(&scored);
}

static void models_check_reads_options_without_a_checkpoint(void **state)
{
    static const struct {
        struct evq_pair options[2];
        size_t count;
        const char *words; // "": accepted.
    } cases[] = {
        {{{"family", "qwen3"}, {"head_dim", "64"}}, 2, ""},
        {{{"num_attention_heads", "7"}}, 1, ""}, // Whether it fits is told with the checkpoint.
        {{{"n_head", "12"}, {"block_size", "64"}}, 2, ""},
        {{{"activation", "relu"}}, 1, ""},
        {{{"n_haed", "12"}}, 1, "did you mean 'n_head'"},
        {{{"n_head", "12"}, {"rope_theta", "3"}}, 2, "no family has all"},
        {{{"family", "qwen3"}, {"n_head", "12"}}, 2, "'n_head' is not known"},
        {{{"family", "qwen3"}, {"head_dim", "wide"}}, 2, "'wide'"},
        {{{"n_head", "0"}}, 1, "'0'"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct evq_task_config task = {
            .name = "t", .model = cases[i].options, .model_count = cases[i].count};
        struct evq_error err = {0};
        const enum evq_status status = evq_model_check(&task, &err);
        if ((status == EVQ_OK) != (cases[i].words[0] == '\0') ||
            strstr(err.message, cases[i].words) == NULL) {
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, err.message, cases[i].words);
        }
    }
}

/* One weight of NaN: every score that it reaches is NaN and predicts nothing. */
static void models_with_nan_weights_give_nan(void **state)
{
    const struct fixture_folder *folder = *state;
    const struct edit same = {.family = "llama", .from = "{", .to = "{"};
    struct scored scored;
    struct text text;
    struct evq_error err = {0};
    char path[128];

    read_expected("llama", &text);
    copy_model(folder, &same);
    assert_status(scored_build(&scored, folder->path, ".", NULL, 0, 0, &err), EVQ_OK);
    const struct evq_tensor *down =
        evq_checkpoint_find(scored.checkpoint, "model.layers.0.mlp.down_proj.weight");
    assert_non_null(down);
    const uint64_t offset = down->offset;
    scored_close(&scored);
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", folder->path);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const float broken = NAN;
    assert_int_equal(pwrite(fd, &broken, sizeof(broken), (off_t)offset), sizeof(broken));
    (void)close(fd);
    assert_status(scored_build(&scored, folder->path, ".", NULL, 0, 0, &err), EVQ_OK);
    assert_status_err(scored_load(&scored, &err), EVQ_OK, &err);
    assert_status(evq_backend_cpu.exec(scored.state, &text.batch, scored.results, &err), EVQ_OK);
    for (int32_t i = 0; i < text.batch.scores; i++) {
        assert_true(isnan(scored.results[i].loss));
        assert_int_equal(scored.results[i].predicted, -1);
        assert_false(scored.results[i].correct);
    }
    scored_close(&scored);
}

/* Frequencies of heads of four values by Transformers 5.23, to the bit: some are not the nearest to
 * the exact ones, for it forms them in fp32. */
static void models_turn_by_the_frequencies_of_transformers(void **state)
{
    const struct fixture_folder *folder = *state;
    static const struct {
        struct edit edit;
        double frequencies[2];
    } cases[] = {
        {{.family = "llama_yarn", .from = "\"factor\":", .to = "\"truncate\": true, \"factor\":"},
         {1, 0.00790569466}},
        {{.family = "llama_yarn", .from = "\"factor\":", .to = "\"truncate\": null, \"factor\":"},
         {1, 0.0316227786}},
        // Whatever stands in rope_scaling, rope_parameters does not count then.
        {{.family = "llama",
          .from = "\"use_cache\":",
          .to = "\"rope_scaling\": {\"rope_theta\": 25.0}, \"use_cache\":"},
         {1, 0.200000003}},
        {{.family = "llama",
          .from = "\"use_cache\":",
          .to = "\"rope_scaling\": {}, \"use_cache\":"},
         {0.576056361, 0.00559017016}},
        {{.family = "llama",
          .from = "\"use_cache\":",
          .to = "\"rope_scaling\": {\"rope_theta\": 7.0}, \"use_cache\":"},
         {1, 0.377964497}},
        {{.family = "llama",
          .from = "\"use_cache\":",
          .to = "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 3.0, \"rope_theta\": "
                "7.0}, \"use_cache\":"},
         {0.333333343, 0.125988171}},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct scored scored;
        struct evq_error err = {0};
        size_t found = 0;
        copy_model(folder, &cases[i].edit);
        assert_status_err(scored_build(&scored, folder->path, ".", NULL, 0, 0, &err), EVQ_OK, &err);
        const struct evq_plan *plan = &scored.model->plan;
        for (size_t k = 0; k < plan->op_count; k++) {
            for (size_t pair = 0; plan->ops[k].kind == EVQ_OP_ROPE && pair < 2; pair++) {
                const float want = (float)cases[i].frequencies[pair];
                assert_memory_equal(&plan->ops[k].frequencies[pair], &want, sizeof(want));
                found++;
            }
        }
        assert_int_equal(found, 4);
        scored_close(&scored);
    }
}

int main(void)
{
#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, fixture_folder_setup, fixture_folder_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_agree_with_transformers_in_float64),
        IN_FOLDER(models_refuse_what_they_are_not),
        IN_FOLDER(models_options_go_before_the_configuration),
        cmocka_unit_test(models_check_reads_options_without_a_checkpoint),
        IN_FOLDER(models_with_nan_weights_give_nan),
        IN_FOLDER(models_turn_by_the_frequencies_of_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
