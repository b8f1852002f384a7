/* Files in and out, by workers that have the identity's rights and no more. */
#ifndef FILES_H
#define FILES_H

#include "command.h"

worker file_read, file_write;

#endif
