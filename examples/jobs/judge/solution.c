/* A solution that someone handed in: it adds up the numbers that it is given. One of the tests it fails. */
#include <stdio.h>

int main(void)
{
    int sum = 0, number;
    while (scanf("%d", &number) == 1)
        sum += number;
    printf("%d\n", sum);
    return 0;
}
