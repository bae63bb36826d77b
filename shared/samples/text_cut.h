/*
 * Leaves the texts out of a line of a samples file before it is parsed. They are most of the line,
 * and a comparison does not need them. Any thread.
 */
#ifndef EVQ_SHARED_SAMPLES_TEXT_CUT_H
#define EVQ_SHARED_SAMPLES_TEXT_CUT_H

#include <stddef.h>

/*
 * Removes the members "output" and "target" in place and returns the new length. Changes nothing
 * unless each member occurs at most once, is written as evq_sample_write() writes it, and all
 * strings are valid, so that the parser refuses the same lines with and without this call.
 */
size_t evq_text_cut(char *line, size_t bytes);

#endif
