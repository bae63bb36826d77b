#include "worker/tokenizer/definition.h"
enum evq_status evq_definition_read_json(struct evq_definition *definition, struct evq_error *err)
{
    return evq_definition_refuse(definition, err, "is not read yet");
}
