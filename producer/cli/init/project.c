#include "producer/cli/init/project.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "producer/cli/submit/checkpoint_listing.h"
#include "shared/base/file.h"

#define DEPTH   2
#define ENTRIES 1000

/* Whether the first of these checkpoints holds the file that a Trainer writes. */
static bool trainer_wrote(const char *directory, const struct evq_checkpoint_listing_list *list)
{
    char path[2048];
    const int bytes =
        snprintf(path, sizeof path, "%s/%s/trainer_state.json", directory, list->items[0].name);

    return bytes > 0 && (size_t)bytes < sizeof path && access(path, F_OK) == 0;
}

static void look(struct evq_project *project, const char *directory)
{
    struct evq_checkpoint_listing_list list = {0};

    // A directory that cannot be read holds nothing for us.
    if (evq_checkpoint_listing_read(directory, NULL, &list, NULL) == EVQ_OK &&
        list.count > project->checkpoint_count) {
        (void)snprintf(project->directory, sizeof project->directory, "%s", directory);
        project->checkpoint_count = list.count;
        project->is_trainer = trainer_wrote(directory, &list);
    }
    evq_checkpoint_listing_free(&list);
}

static void look_below(struct evq_project *project, const char *directory, int depth)
{
    look(project, directory);
    DIR *stream = depth < DEPTH ? opendir(directory) : NULL;
    if (stream == NULL) {
        return;
    }
    const struct dirent *entry = NULL;
    for (int i = 0; i < ENTRIES && (entry = readdir(stream)) != NULL; i++) {
        char path[sizeof project->directory];
        const bool top = strcmp(directory, ".") == 0;
        const int bytes = snprintf(path, sizeof path, "%s%s%s", top ? "" : directory,
                                   top ? "" : "/", entry->d_name);
        if (entry->d_name[0] != '.' && entry->d_type == DT_DIR && bytes > 0 &&
            (size_t)bytes < sizeof path) {
            look_below(project, path, depth + 1);
        }
    }
    (void)closedir(stream);
}

/* The name of a run: that of the directory, with "-" for what a run name cannot hold. */
static void name_run(struct evq_project *project)
{
    const char *slash = strrchr(project->directory, '/');
    const char *name = slash != NULL ? slash + 1 : project->directory;

    (void)snprintf(project->run, sizeof project->run, "%.64s",
                   strcmp(name, ".") == 0 ? "run" : name);
    for (char *at = project->run; *at != '\0'; at++) {
        if (!isascii((unsigned char)*at) ||
            (!isalnum((unsigned char)*at) && strchr("._-", *at) == NULL)) {
            *at = '-';
        }
    }
}

void evq_project_read(struct evq_project *project)
{
    char path[4096];

    *project = (struct evq_project){.lm_eval = evq_file_program_find("lm_eval", path, sizeof path)};
    look_below(project, ".", 0);
    name_run(project);
}
