/* Documents of a file of tokens. */
#include "worker/datasets/corpus_build.h"

enum evq_status evq_corpus_read_tokens(struct evq_corpus_build *build, struct evq_error *err)
{
    return evq_error_set(err, EVQ_E_UNSUPPORTED, "'%s': files of tokens are not read yet",
                         build->corpus->name);
}
