/*
 * pages.h - what the kernel does with the pages of a mapped file. Files that are larger than the
 * memory must not fill the page cache: their pages push out others, and count as the memory of the
 * control group that the program runs in.
 */
#ifndef OATO_PAGES_H
#define OATO_PAGES_H

#include "base/base.h"

enum file_use {
    FILE_USUAL,     /* as at first: the kernel reads ahead */
    FILE_SCATTERED, /* pages here and there: the kernel reads only what is touched */
    FILE_ONCE       /* each page once: as above, and what file_release is told of leaves the page
                       cache, too, unless another process maps it */
};
void file_use(const struct mapped_file *f, enum file_use use);

#endif
