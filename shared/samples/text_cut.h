/*
 * Leaves the texts out of a line of a samples file before it is parsed. They are most of the line,
 * and a comparison does not need them. Any thread.
 */
#ifndef EVQ_SHARED_SAMPLES_TEXT_CUT_H
#define EVQ_SHARED_SAMPLES_TEXT_CUT_H

#include <stddef.h>

/*
 * Removes the members "output" and "target" in place and returns the new length. The line stays as
 * it is unless each comes at most once, in the form that evq_sample_write() gives it, and every
 * string of the line is valid: a line that the parser refuses is refused without its texts, too.
 */
size_t evq_text_cut(char *line, size_t bytes);

#endif
