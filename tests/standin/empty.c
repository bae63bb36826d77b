/* A library without anything in it: the name is there, what is looked for is not. */
extern int evq_standin_empty;
