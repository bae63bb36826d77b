/*
 * Interprets the JSON lines of a persistent program, and keeps what they said about the present
 * job. docs/evaluators.md describes the lines. One thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_PROGRAM_LINES_H
#define EVQ_WORKER_EVALUATORS_PROGRAM_LINES_H

#include "worker/evaluators/sample_store.h"

enum evq_program_line { // What a line of the program means for the job.
    EVQ_PROGRAM_LINE_NONE,
    EVQ_PROGRAM_LINE_READY,
    EVQ_PROGRAM_LINE_PROGRESS,
    EVQ_PROGRAM_LINE_SAMPLES,
    EVQ_PROGRAM_LINE_TASK,
    EVQ_PROGRAM_LINE_DONE,
    EVQ_PROGRAM_LINE_ERROR
};

struct evq_program_job {
    const char *evaluator; // Names for messages and results; borrowed.
    const char *device;
    uint64_t turn;     // Number of the present job. Each job that is handed over has its own.
    bool echoes;       // The program names the job's number in its lines.
    uint64_t late;     // Lines about earlier jobs that arrived during this one.
    int64_t began_us;  // When the program took the present job, or ended its last task.
    int64_t report_ms; // How long its results were reported. That does not use up its time limit.
    bool *tasks_given; // Which tasks of the suite the present job has reported.
    size_t task_room;  // Allocated entries of tasks_given.
    struct evq_sample_store *samples; // Samples of the next task; NULL: none yet.
    struct evq_error refusal;         // Why a task's result was refused; EVQ_OK: none was.
};

/* Forgets the tasks and samples of the job before. EVQ_E_NOMEM. */
enum evq_status evq_program_lines_begin(struct evq_program_job *job,
                                        const struct evq_eval_request *request,
                                        struct evq_error *err) EVQ_CHECK_RESULT;
void evq_program_lines_end(struct evq_program_job *job); // Frees what the job holds.

/*
 * Interprets one line. EVQ_E_STOPPED: report said so, or the result was refused (job->refusal says
 * why). With EVQ_PROGRAM_LINE_ERROR, err is what the program reported. Any other error means that
 * the line breaks the protocol.
 */
enum evq_status evq_program_lines_take(struct evq_program_job *job, const char *text, size_t bytes,
                                       const struct evq_eval_request *request,
                                       const struct evq_eval_report *report,
                                       enum evq_program_line *ret_said,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

#endif
