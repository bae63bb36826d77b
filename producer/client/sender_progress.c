/* Wakes the threads that wait until the sender has got further. */
#include "producer/client/sender.h"

void evq_sender_tell(struct evq_sender *sender, bool failed)
{
    pthread_mutex_lock(&sender->progress_lock);
    sender->failures += failed;
    pthread_cond_broadcast(&sender->progress);
    pthread_mutex_unlock(&sender->progress_lock);
}
