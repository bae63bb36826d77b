/*
 * How busy, full and hot this machine's GPUs are, as NVML tells. A thread for each GPU asks,
 * because NVML may take its time, or for ever for one that has fallen off the bus: who reads never
 * waits, and no GPU for another. Reading is for one thread.
 */
#ifndef EVQ_WORKER_GAUGE_H
#define EVQ_WORKER_GAUGE_H

#include "worker/devices/devices.h"
#include "worker/devices/nvml.h"

struct evq_gpu_monitor;

/* Asks for all of devices, every period_ms. Where there is no NVML nothing is ever read.
 * EVQ_E_NOMEM.
 */
enum evq_status evq_gpu_monitor_open(const struct evq_devices *devices, int64_t period_ms,
                                     struct evq_gpu_monitor **ret_gauge,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* Accepts NULL. Threads that are still inside NVML after a second are left there, with their
 * memory.
 */
void evq_gpu_monitor_close(struct evq_gpu_monitor *gauge);

/* Of the device with this id. False: it was never read, or not within the last five periods; always
 * so for NULL. */
bool evq_gpu_monitor_read(struct evq_gpu_monitor *gauge, const char *id,
                          struct evq_nvml_reading *ret_reading);

#endif
